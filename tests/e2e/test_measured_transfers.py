"""A scenario without a fabric moves KV cache by the transfer times of its step-times file."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run

Capture = pytest.CaptureFixture[str]

MS = 1_000_000
SCENARIO = """
schema_version: 1
name: this machine
model: llama-3.1-8b
workers: {prefill: 1, decode: 1, tp: 1, block_size: 16, num_blocks: 500, max_model_len: 1000}
perf: {kind: step-times, path: steps.json}
workload:
  kind: generated
  arrivals: {kind: constant, rate: 1 /s}
  prompt: {kind: constant, tokens: 100}
  output: {kind: constant, tokens: 5}
  requests: 10
"""
TIMES: dict[str, Any] = {
    "schema_version": 1,
    "source": "a machine",
    "batches": [1, 8],
    "contexts": [32, 128],
    "decode_ns": [[MS, MS], [MS, MS]],
    "chunks": [16, 256],
    "histories": [0, 128],
    "prefill_ns": [[20 * MS, 20 * MS], [20 * MS, 20 * MS]],
    "control_ns": 1,
}
TRANSFER = {"transfer": {"setup_ns": 5 * MS, "bytes_per_s": 10**9}}


def written(folder: Path, times: dict[str, Any], scenario: str = SCENARIO) -> str:
    (folder / "steps.json").write_text(json.dumps(times))
    path = folder / "scenario.yaml"
    path.write_text(scenario)
    return str(path)


@pytest.mark.parametrize("reserve", ["prefill_first", "decode_first"])
def test_hand_offs_take_what_was_measured(tmp_path: Path, capsys: Capture, reserve: str) -> None:
    scenario = f"{SCENARIO}handoff: {{reserve: {reserve}}}\n"
    path = written(tmp_path, TIMES | TRANSFER, scenario)
    ran = run(capsys, "simulate", path, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    answer = json.loads(ran.out)
    # 100 tokens x 131,072 bytes at 1 GB/s after 5 ms
    wire_ns = 5 * MS + 100 * 131_072
    assert answer["design"]["ttft_split_mean"]["wire_ns"] == pytest.approx(wire_ns, rel=0.01)
    assert answer["design"]["num_flows"] == 10
    assert answer["design"]["fabric"] is None
    text = run(capsys, "simulate", path).out
    assert "KV cache moves as measured" in text
    assert "transfers that slow each other down" in text


def test_without_transfer_times_a_fabric_is_asked_for(tmp_path: Path, capsys: Capture) -> None:
    eight = SCENARIO.replace("tp: 1", "tp: 8")
    ran = run(capsys, "simulate", written(tmp_path, TIMES, eight))
    assert ran.code == 2
    assert "no fabric" in ran.err


def test_a_fabric_that_is_named_carries_them(tmp_path: Path, capsys: Capture) -> None:
    eight = SCENARIO.replace("tp: 1", "tp: 8") + "fabric: {nic_rate: 400 Gbit/s, kinds: [clos]}\n"
    ran = run(capsys, "simulate", written(tmp_path, TIMES | TRANSFER, eight), "--format", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["design"]["fabric"] == "clos"
