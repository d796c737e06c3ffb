"""The rows of the sweep as one Parquet file. Needs pyarrow, of the extra ``sweep``."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kvfabric.errors import ConfigError
from kvfabric.export.claims_rows import Value

MISSING = "pyarrow is not installed, and results are written as Parquet"
HINT = "Install kvfabric with its extra: pip install 'kvfabric[sweep]'"


def check_parquet() -> None:
    """Refuse, before the long run, to write Parquet without pyarrow.

    Raises:
        ConfigError: it is not installed; says how to.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError(MISSING, where="--out", hint=HINT)


def write_parquet(path: Path, rows: Sequence[dict[str, Value]]) -> None:
    """Write rows of equal keys; a column without any value is text."""
    check_parquet()
    import pyarrow as pa  # noqa: PLC0415 - optional
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    names = list(rows[0]) if rows else []
    columns = {name: _column([row[name] for row in rows]) for name in names}
    arrays = {
        name: pa.array(values, type=pa.string() if all(v is None for v in values) else None)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path)


def _column(values: list[Value]) -> list[Value]:
    """Return values of one type: whole numbers beside fractions become fractions."""
    if any(isinstance(value, float) for value in values):
        return [float(value) if isinstance(value, int) else value for value in values]
    return values
