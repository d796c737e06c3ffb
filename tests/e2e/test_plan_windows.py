"""Parts of a trace, paths beside the scenario, and requests that no worker can hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]
HEAD = TINY.split("workload:", maxsplit=1)[0].replace("[clos, roft, zcube]", "[clos]")
ROWS = "".join(
    json.dumps({"timestamp": 1000 * i, "input_length": 600, "output_length": 4}) + "\n"
    for i in range(20)
)


def planned(
    tmp_path: Path, capsys: Capture, setting: str, *flags: str, head: str = HEAD
) -> dict[str, Any]:
    (tmp_path / "trace.jsonl").write_text(ROWS)
    path = tmp_path / "scenario.yaml"
    path.write_text(head + f"workload: {{kind: trace, path: trace.jsonl{setting}}}\n")
    ran = run(capsys, "plan", str(path), "--jobs", "1", "--format", "json", *flags)
    assert (ran.code, ran.err) == (0, "")
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


@pytest.mark.parametrize(
    ("setting", "flags", "num_requests"),
    [
        ("", [], 20),
        (", limit: 7", [], 7),
        (", limit: 7", ["--limit", "5"], 5),
        (", start: 10 s", [], 10),
        (", start: 2 s, duration: 3 s", [], 3),
        (", start: 2 s, duration: 9 s", ["--speedup", "4", "--limit", "6"], 6),
    ],
)
def test_plan_takes_a_part_of_a_trace(
    setting: str, flags: list[str], num_requests: int, tmp_path: Path, capsys: Capture
) -> None:
    answer = planned(tmp_path, capsys, setting, *flags)
    assert answer["workload"]["num_requests"] == num_requests
    assert all(d["counts"]["finished"] == num_requests for d in answer["designs"])


def test_plan_speedup_flag_replaces_that_of_the_scenario(tmp_path: Path, capsys: Capture) -> None:
    by_file = planned(tmp_path, capsys, ", speedup: 4")
    by_flag = planned(tmp_path, capsys, ", speedup: 2", "--speedup", "4")
    assert by_file["designs"] == by_flag["designs"]


def test_plan_window_without_requests_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "trace.jsonl").write_text(ROWS)
    path = tmp_path / "scenario.yaml"
    path.write_text(HEAD + "workload: {kind: trace, path: trace.jsonl, start: 60 s}\n")
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert "no request arrives" in ran.err


def test_plan_finds_a_config_beside_the_scenario(tmp_path: Path, capsys: Capture) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 1024,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
        "intermediate_size": 2816, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = HEAD.replace("llama-3.1-8b", "./config.json")
    answer = planned(tmp_path, capsys, "", head=head)
    assert answer["sizing"]["kv_bytes_per_token"] == 2 * 4 * 4 * 64 * 2  # layers, heads, width


def test_plan_gives_latencies_that_keep_their_order(tmp_path: Path, capsys: Capture) -> None:
    answer = planned(tmp_path, capsys, "")
    for design in (*answer["designs"], answer["aggregated"]):
        for latency in (design["ttft"], design["tpot"]):
            assert 0 < latency["p50_ns"] <= latency["p90_ns"] <= latency["p99_ns"]
        assert design["rates"]["slo_share"] == 1.0


def test_plan_counts_requests_that_no_worker_can_hold(tmp_path: Path, capsys: Capture) -> None:
    """Longer than a worker's KV memory, though not than the model: told, not dropped."""
    rows = [
        {"timestamp": i, "input_length": 90_000 if i == 3 else 600, "output_length": 4}
        for i in range(8)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "scenario.yaml"
    small = HEAD.replace("tp: 1", "tp: 1, gpu_memory_utilization: 0.32")
    path.write_text(small + "workload: {kind: trace, path: trace.jsonl}\n")
    ran = run(capsys, "plan", str(path), "--jobs", "1")
    assert ran.code == 0
    assert "clos assigned: of 8 requests 1 were rejected" in ran.out


def test_plan_that_does_not_fit_says_by_how_much(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY.replace("llama-3.1-8b", "llama-3.1-70b"))
    ran = run(capsys, "plan", str(path), "--out", str(tmp_path / "out"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    found = re.search(r"exceed the memory of a GPU by ([0-9.]+) GB, ", ran.err)
    assert found is not None
    # 141.1 GB of weights in 0.9 x 85.03 GB, and a few GB of reserves
    assert 141.1 - 0.9 * 85.03 < float(found[1]) < 141.1 - 0.9 * 85.03 + 4
    assert not (tmp_path / "out").exists()
