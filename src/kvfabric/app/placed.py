"""Mistakes found behind the scenario file, told with its file and line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_file import BUILT_IN, place_of
from kvfabric.errors import ConfigError, UnsupportedError

# What the packages call the keys of a scenario.
_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "context": "context_tokens",
        "max_model_len": "workers.max_model_len",
        "tp": "workers.tp",
        "workers.num_prefill": "workers.prefill",
        "workers.num_decode": "workers.decode",
        "kv_dtype": "workers.kv_dtype",
        "weight_dtype": "workers.weight_dtype",
        "fabric.failures": "fabric.kinds",
        "fabric.kind": "fabric.kinds",
        "fabric.nic_rate": "fabric.nic_rate",
        "fabric.num_gpus": "fabric.kinds",
        "fabric.num_tiers": "fabric.kinds",
        "fabric.oversubscription": "fabric.kinds",
        "fabric.pfc.xoff_bytes": "fabric.pfc.xoff",
        "fabric.pfc.xon_bytes": "fabric.pfc.xon",
        "fabric.pfc.loop_delay_ns": "fabric.pfc.loop_delay",
        "fabric.radix": "fabric.kinds",
        "fabric.shape": "fabric.kinds",
        "": "workers",
    }
)


@contextmanager
def placed(path: Path | None) -> Iterator[None]:
    """Put file and line before the key of a mistake found while building its parts."""
    try:
        yield
    except ConfigError as error:
        name = BUILT_IN if path is None else str(path)
        if name in error.where or error.where.startswith("--") or _is_file(error.where):
            raise
        where = place_of(_KEYS.get(error.where, error.where), path)
        kind = UnsupportedError if isinstance(error, UnsupportedError) else ConfigError
        raise kind(error.what, where=where, hint=error.hint) from None


def _is_file(where: str) -> bool:
    return bool(where) and Path(where.split(":", maxsplit=1)[0]).exists()


def require_keys(scenario: Scenario, hints: Mapping[str, str], path: Path | None) -> None:
    """Refuse a scenario that lacks keys which only some commands need.

    Args:
        scenario: as read.
        hints: what to write, by key.
        path: of its file.
    """
    for key, hint in hints.items():
        if getattr(scenario, key) is None:
            raise ConfigError("the key is missing", where=place_of(key, path), hint=hint)
