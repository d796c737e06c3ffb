"""Grids of step times as a JSON file.

Written by ``generate --record``, ``serve --record`` and ``step-times --out``, read by ``perf`` of
kind ``step-times``.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvfabric.errors import ConfigError
from kvfabric.perf.step_times import RECORDED_ERROR, StepTimes
from kvfabric.perf.transfer_times import TransferTimes
from kvfabric.protocol.provenance import Source, SourceKind

MAX_FILE_BYTES = 1 << 20
_Count = Annotated[int, Field(ge=0, le=1 << 40)]
_Ns = Annotated[int, Field(ge=1, le=1 << 50)]


class _Transfer(BaseModel):
    """KV transfers; see ``TransferTimes``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    setup_ns: _Count
    bytes_per_s: Annotated[int, Field(ge=1, le=1 << 50)]


class _File(BaseModel):
    """The file; see ``StepTimes``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_version: Annotated[int, Field(ge=1, le=1)]
    source: str
    date: str = ""
    kind: SourceKind = Field(SourceKind.MEASURED, strict=False)
    known_error: str = RECORDED_ERROR
    batches: list[_Count]
    contexts: list[_Count]
    decode_ns: list[list[_Ns]]
    chunks: list[_Count]
    histories: list[_Count]
    prefill_ns: list[list[_Ns]]
    control_ns: _Count
    transfer: _Transfer | None = None


def step_times_json(times: StepTimes) -> str:
    """Return the text of the file."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "source": times.source.text,
        "date": times.source.date,
        "kind": times.source.kind.value,
        "known_error": times.known_error,
        "batches": times.batches,
        "contexts": times.contexts,
        "decode_ns": times.decode_ns,
        "chunks": times.chunks,
        "histories": times.histories,
        "prefill_ns": times.prefill_ns,
        "control_ns": times.control_ns,
    }
    if times.transfers is not None:
        values["transfer"] = {
            "setup_ns": times.transfers.setup_ns,
            "bytes_per_s": times.transfers.bytes_per_s,
        }
    return json.dumps(values, indent=1) + "\n"


def read_step_times(path: Path) -> StepTimes:
    """Return what the file says.

    Raises:
        ConfigError: it cannot be read, or is no such file; says where and what.
    """
    hint = "Write one with kvfabric generate --record FILE, or kvfabric step-times --out FILE"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror}", where=str(path), hint=hint) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"more than {MAX_FILE_BYTES} bytes", where=str(path), hint=hint)
    try:
        found = _File.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        where = f"{path}: {place}" if place else str(path)
        raise ConfigError(first["msg"], where=where, hint=hint) from None
    source = Source(found.kind, found.source, found.date)
    transfers: TransferTimes | None = None
    if found.transfer is not None:
        transfers = TransferTimes(
            setup_ns=found.transfer.setup_ns,
            bytes_per_s=found.transfer.bytes_per_s,
            source=source,
        )
    try:
        return StepTimes(
            batches=tuple(found.batches),
            contexts=tuple(found.contexts),
            decode_ns=tuple(map(tuple, found.decode_ns)),
            chunks=tuple(found.chunks),
            histories=tuple(found.histories),
            prefill_ns=tuple(map(tuple, found.prefill_ns)),
            control_ns=found.control_ns,
            source=source,
            transfers=transfers,
            known_error=found.known_error,
        )
    except ConfigError as error:
        raise ConfigError(error.what, where=str(path), hint=error.hint) from None
