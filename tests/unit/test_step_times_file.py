"""The file of measured step times: what is written is read, what is no such file is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvfabric.app.step_times_file import read_step_times, step_times_json
from kvfabric.errors import ConfigError
from kvfabric.perf.step_times import StepTimes
from kvfabric.perf.transfer_times import TransferTimes
from kvfabric.protocol.provenance import Source, SourceKind

TIMES = StepTimes(
    batches=(1, 8),
    contexts=(32, 128),
    decode_ns=((10, 20), (30, 40)),
    chunks=(16, 64),
    histories=(0, 128),
    prefill_ns=((50, 60), (70, 80)),
    control_ns=5,
    source=Source(SourceKind.MEASURED, "a machine", "2026-11-30"),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(step_times_json(TIMES))
    assert read_step_times(path) == TIMES


def test_transfer_times_are_optional(tmp_path: Path) -> None:
    transfers = TransferTimes(setup_ns=7, bytes_per_s=9, source=TIMES.source)
    path = tmp_path / "steps.json"
    path.write_text(step_times_json(replace(TIMES, transfers=transfers)))
    assert read_step_times(path).transfers == transfers
    assert "transfer" not in json.loads(step_times_json(TIMES))


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"schema_version": 2}, "schema_version"),
    "time of 0": ({"decode_ns": [[10, 0], [30, 40]]}, r"decode_ns\.0\.1"),
    "fraction": ({"control_ns": 1.5}, "control_ns"),
    "unknown key": ({"more": 1}, "more"),
    "transfer": ({"transfer": {"setup_ns": 1, "bytes_per_s": 0}}, r"transfer\.bytes_per_s"),
    "hole": ({"prefill_ns": [[1, 2]]}, "no full grid"),
    "order": ({"chunks": [64, 16]}, "ascend"),
}


@pytest.mark.parametrize(("change", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_told(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(json.loads(step_times_json(TIMES)) | change))
    with pytest.raises(ConfigError, match=text) as caught:
        read_step_times(path)
    assert str(path) in str(caught.value)


def test_no_file_and_no_json_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_step_times(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(ConfigError, match="JSON"):
        read_step_times(tmp_path / "text.json")
