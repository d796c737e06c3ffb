"""``kvfabric simulate`` as a user runs it: figures, files, repeats, and what it refuses."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command import TINY, run
from profiles import META, write_profile
from reference import reference_path

Capture = pytest.CaptureFixture[str]

ALONE = """
schema_version: 1
name: alone
model: llama-3.1-8b
gpu: h100-sxm-80gb
workers: {prefill: 1, decode: 0, tp: 1, block_size: 16}
workload:
  kind: generated
  arrivals: {kind: poisson, rate: 20 /s}
  prompt: {kind: uniform, minimum: 500, maximum: 4000}
  output: {kind: uniform, minimum: 1, maximum: 60}
  requests: 40
"""
RECORDED = """
schema_version: 1
name: recorded
model: llama-3.1-8b
workers: {prefill: 1, decode: 0, tp: 1, block_size: 16, num_blocks: 2000, max_model_len: 8000}
perf: {kind: profile, path: measured}
workload: {kind: trace, path: run.jsonl}
"""


def as_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    ran = run(capsys, "simulate", *arguments, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def written(folder: Path, text: str, name: str = "scenario.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def recorded(folder: Path, *, meta: str = "meta-llama/Llama-3.1-8B", num_rows: int = 12) -> str:
    """Write a recorded run with the profile of its GPU, and return the scenario's path."""
    profile = write_profile(folder / "measured")
    (profile / "meta.yaml").write_text(META.replace("round/model", meta))
    rows: list[Mapping[str, object]] = [
        {
            "input_toks": 30 + i, "output_toks": 4 + i, "arrival_time": 1e9 + i / 100,
            "queued_ts": 5 + i / 100, "scheduled_ts": 5 + i / 100, "first_token_ts": 5.01 + i / 100,
            "last_token_ts": 5.05 + i / 100,
        }
        for i in range(num_rows)
    ]  # fmt: skip
    (folder / "run.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return written(folder, RECORDED)


# ---------------------------------------------------------------------------- figures


def test_worker_that_does_both_needs_no_fabric(tmp_path: Path, capsys: Capture) -> None:
    answer = as_json(capsys, written(tmp_path, ALONE))
    assert answer["design"]["name"] == "aggregated"
    assert answer["design"]["counts"]["finished"] == 40
    assert answer["fleet"]["async_scheduling"] is True
    assert [worker["role"] for worker in answer["workers"]] == ["aggregated"]


def test_same_seed_prints_the_same_bytes(tmp_path: Path, capsys: Capture) -> None:
    path = written(tmp_path, TINY)
    for output_format in ("text", "json"):
        first, second = (run(capsys, "simulate", path, "--format", output_format) for _ in range(2))
        assert (first.code, first.err) == (0, "")
        assert first == second
    assert run(capsys, "simulate", path, "--seed", "3").out != first.out


def test_text_shows_latencies_stages_totals_and_their_source(
    tmp_path: Path, capsys: Capture
) -> None:
    ran = run(capsys, "simulate", written(tmp_path, TINY))
    for words in (
        "TTFT, client", "TTFT, engine", "ITL", "Where the time to first token goes",
        "preemptions", "Handed off: ", "Busy: prefill ", "Verdict", "Step times: ", "Their error: ",
        "Does not model: ", "is one of 6 designs of the scenario",
    ):  # fmt: skip
        assert words in ran.out
    assert max(map(len, ran.out.splitlines())) <= 118


@pytest.mark.parametrize("mode", ["whole_prompt", "layer_wise"])
@pytest.mark.parametrize("reserve", ["prefill_first", "decode_first"])
def test_every_kind_of_hand_off_serves_the_load(
    mode: str, reserve: str, tmp_path: Path, capsys: Capture
) -> None:
    text = f"{TINY}handoff: {{mode: {mode}, reserve: {reserve}, layer_groups: 4}}\n"
    answer = as_json(
        capsys, written(tmp_path, text), "--fabric", "zcube", "--load-balancing", "assigned"
    )
    assert answer["design"]["name"] == "zcube assigned"
    assert answer["design"]["counts"]["finished"] == 60
    assert answer["fleet"]["handoff"]["mode"] == mode
    split = answer["design"]["ttft_split_mean"]
    assert sum(split.values()) == answer["design"]["ttft"]["mean_ns"]


def test_streaming_layers_leaves_less_to_wait_for_than_moving_the_prompt_at_once(
    tmp_path: Path, capsys: Capture
) -> None:
    wires = []
    for mode in ("whole_prompt", "layer_wise"):
        answer = as_json(capsys, written(tmp_path, f"{TINY}handoff: {{mode: {mode}}}\n"))
        wires.append(answer["design"]["ttft_split_mean"]["wire_ns"])
    assert 0 < wires[1] < wires[0] / 2


def test_plan_takes_the_same_sections(tmp_path: Path, capsys: Capture) -> None:
    text = TINY.replace("tp: 1}", "tp: 1, num_blocks: 3000}")
    text += "handoff: {mode: layer_wise}\nperf: {kind: roofline}\n"
    ran = run(capsys, "plan", written(tmp_path, text))
    assert ran.code == 0
    assert "3,000 KV blocks per worker as given; our own sizing gives " in ran.out


def test_plan_schedules_synchronously_unless_told(tmp_path: Path, capsys: Capture) -> None:
    outs = []
    for key in ("", ", async_scheduling: false", ", async_scheduling: true"):
        text = TINY.replace("tp: 1}", f"tp: 1{key}}}").replace("rate: 20 /s", "rate: 500 /s")
        ran = run(capsys, "plan", written(tmp_path, text), "--format", "json")
        outs.append([design["log_digest"] for design in json.loads(ran.out)["designs"]])
    assert outs[0] == outs[1] != outs[2]


# ---------------------------------------------------------------------------- recorded runs


def test_recorded_run_is_compared_with_the_simulation(tmp_path: Path, capsys: Capture) -> None:
    path = recorded(tmp_path)
    answer = as_json(capsys, path, "--window", "2:5")
    everything, window = answer["comparisons"]
    assert (everything["num_requests"], window["num_requests"]) == (12, 4)
    found = {figure["name"]: figure["measured_ns"] for figure in everything["figures"]}
    assert found["TTFT mean"] == 10_000_000
    assert answer["step_time_source"].startswith("measured: operator profile of meta-llama")
    out = run(capsys, "simulate", path).out
    assert "Against the recorded run, requests all: 12 requests" in out
    assert "on 1 GPU:" in out


def test_recorded_run_at_another_speed_is_not_compared(tmp_path: Path, capsys: Capture) -> None:
    assert as_json(capsys, recorded(tmp_path), "--speedup", "2")["comparisons"] == []


def test_part_of_a_recorded_run_is_compared(tmp_path: Path, capsys: Capture) -> None:
    answer = as_json(capsys, recorded(tmp_path), "--limit", "5")
    assert answer["comparisons"][0]["num_requests"] == 5


def test_profile_and_trace_can_be_flags(tmp_path: Path, capsys: Capture) -> None:
    recorded(tmp_path)
    text = RECORDED.replace(", path: measured", "").replace(", path: run.jsonl", "")
    (tmp_path / "elsewhere").mkdir()
    path = written(tmp_path / "elsewhere", text)
    arguments = ["--profile", str(tmp_path / "measured"), "--trace", str(tmp_path / "run.jsonl")]
    assert as_json(capsys, path, *arguments)["comparisons"][0]["num_requests"] == 12


def test_collectives_are_told_with_their_source(tmp_path: Path, capsys: Capture) -> None:
    path = recorded(tmp_path)
    write_profile(tmp_path / "measured", name="profile_tp2")
    (tmp_path / "measured" / "profile_tp2" / "meta.yaml").write_text(
        META.replace("round/model", "llama-3.1-8b")
    )
    given = "{alpha: 10 us, bus_bandwidth: 25 GB/s, source: our own nccl-tests}"
    for collectives, told in (("pcie-peer", "two RTX PRO 6000"), (given, "our own nccl-tests")):
        text = RECORDED.replace("tp: 1", "tp: 2")
        text = text.replace("measured}", f"measured, collectives: {collectives}}}")
        Path(path).write_text(text)
        assert told in as_json(capsys, path)["step_time_source"]


# ---------------------------------------------------------------------------- files


def test_out_writes_every_request_and_the_scenario_that_repeats_it(
    tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "result"
    path = written(tmp_path, TINY)
    answer = as_json(capsys, path, "--seed", "7", "--out", str(out))
    assert json.loads((out / "result.json").read_text()) == answer
    rows = list(csv.DictReader((out / "requests.csv").read_text().splitlines()))
    assert len(rows) == 60
    assert all(row["outcome"] == "finished" for row in rows)
    stages = ("router", "prefill_queue", "prefill_compute", "decode_blocks_wait", "wire")
    for row in rows:
        parts = sum(int(row[f"{stage}_ns"]) for stage in (*stages, "first_decode_step"))
        assert parts == int(row["ttft_ns"]) >= int(row["engine_ttft_ns"])
    again = as_json(capsys, str(out / "scenario.yaml"))
    assert again["design"] == answer["design"]


def test_out_writes_the_keys_of_vllm_bench_serve(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "result"
    run(capsys, "simulate", written(tmp_path, ALONE), "--out", str(out))
    found = json.loads((out / "bench_serve.json").read_text())
    assert found["completed"] == found["num_prompts"] == 40
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < found[f"mean_{name}_ms"] <= found[f"p99_{name}_ms"]


def test_show_names_the_origin_of_each_value(tmp_path: Path, capsys: Capture) -> None:
    path = written(tmp_path, ALONE)
    shown = run(capsys, "simulate", path, "--show").out
    assert "async_scheduling: true  # default" in shown
    assert f"block_size: 16  # {path}" in shown
    again = run(capsys, "simulate", written(tmp_path, shown, "again.yaml"), "--show").out
    assert [line.split("  #")[0] for line in again.splitlines()] == [
        line.split("  #")[0] for line in shown.splitlines()
    ]


# ---------------------------------------------------------------------------- what is refused

REFUSED: dict[str, tuple[str, str, str, str]] = {
    "decode without fabric": ("decode: 0", "decode: 7", "fabric: no fabric", "decode 0"),
    "no workers": ("prefill: 1", "prefill: 0", ":6: workers.prefill: ", "1 or more"),
    "roofline without GPU": ("gpu: h100-sxm-80gb\n", "", ": gpu: no GPU is named", "num_blocks"),
    "too few blocks": ("tp: 1,", "tp: 1, num_blocks: 1,", ":6: workers.num_blocks: ", "2 or more"),
    "pool below a request": (
        "tp: 1,", "tp: 1, num_blocks: 9, max_model_len: 8000,", "needs 500 KV blocks", ""
    ),
    "unknown step times": ("workload:", "perf: {kind: magic}\nworkload:", ":7: perf: ", "profile"),
    "misspelt key of step times": (
        "workload:", "perf: {kind: profile, pth: x}\nworkload:", ":7: perf.pth: ", "'path'"
    ),
    "profile without path": (
        "workload:", "perf: {kind: profile}\nworkload:", ": perf.path: ", "--profile"
    ),
    "no such profile": (
        "workload:", "perf: {kind: profile, path: nowhere}\nworkload:", "nowhere: ", "folder"
    ),
    "unknown collectives": (
        "workload:", "perf: {kind: profile, collectives: bus}\nworkload:",
        ":7: perf.collectives: ", "pcie-peer",
    ),
    "collectives without source": (
        "workload:", "perf: {kind: profile, collectives: {alpha: 1 us}}\nworkload:",
        ":7: perf.collectives.bus_bandwidth: ", "Add the key",
    ),
    "bare bandwidth": (
        "workload:",
        "perf: {kind: profile, collectives: {alpha: 1 us, bus_bandwidth: 5, source: s}}\nworkload:",
        ":7: perf.collectives.bus_bandwidth: ", "unit",
    ),
    "unknown hand-off": (
        "workload:", "handoff: {mode: by_pigeon}\nworkload:", ":7: handoff.mode: ", "layer_wise"
    ),
    "ramp of an open loop": ("rate: 20 /s", "rate: 20 /s, ramp_up: 1 s", "arrivals.ramp_up: ", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_mistake_in_a_scenario_is_told_with_its_place(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    old, new, place, hint = REFUSED[case]
    assert old in ALONE
    path = written(tmp_path, ALONE.replace(old, new))
    ran = run(capsys, "simulate", path)
    assert ran.code in {1, 2}
    assert ran.out == ""
    assert place in ran.err
    assert hint in ran.err
    assert len(ran.err.splitlines()) == 1


def test_profile_of_another_model_is_refused(tmp_path: Path, capsys: Capture) -> None:
    ran = run(capsys, "simulate", recorded(tmp_path, meta="Qwen/Qwen3-8B"))
    assert ran.code == 2
    assert "perf.path: the profile is of Qwen/Qwen3-8B, the scenario's model is llama" in ran.err


@pytest.mark.parametrize("meta", ["meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"])
def test_profile_of_the_same_sizes_is_taken(meta: str, tmp_path: Path, capsys: Capture) -> None:
    assert as_json(capsys, recorded(tmp_path, meta=meta))["design"]["counts"]["finished"] == 12


def test_tensor_parallel_profile_needs_the_cost_of_collectives(
    tmp_path: Path, capsys: Capture
) -> None:
    path = recorded(tmp_path)
    write_profile(tmp_path / "measured", name="profile_tp2")
    meta = tmp_path / "measured" / "profile_tp2" / "meta.yaml"
    meta.write_text(META.replace("round/model", "llama-3.1-8b"))
    Path(path).write_text(RECORDED.replace("tp: 1", "tp: 2"))
    ran = run(capsys, "simulate", path)
    assert ran.code == 2
    assert "perf.collectives: 2 ranks and no cost of their collectives" in ran.err
    assert "nvlink-h100" in ran.err


def test_data_parallel_ranks_come_in_groups(tmp_path: Path, capsys: Capture) -> None:
    path = recorded(tmp_path)
    perf = "path: measured, data_parallel: 2, collectives: pcie-peer"
    Path(path).write_text(RECORDED.replace("path: measured", perf))
    ran = run(capsys, "simulate", path)
    assert (ran.code, ran.out) == (2, "")
    assert "workers.prefill: 1 workers, in groups of 2 data-parallel ranks" in ran.err
    Path(path).write_text(
        RECORDED.replace("path: measured", perf).replace("prefill: 1", "prefill: 2")
    )
    answer = as_json(capsys, path)
    assert answer["fleet"]["data_parallel"] == 2
    assert "data-parallel ranks equally loaded" in answer["step_time_source"]


ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "window as text": (["--window", "all"], "--window: read 'all'"),
    "window backwards": (["--window", "9:3"], "--window: read '9:3'"),
    "window of a generated load": (["--window", "1:3"], "--window: the load is no recorded run"),
    "unknown fabric": (["--fabric", "torus"], "--fabric: no fabric 'torus'"),
    "unknown policy": (["--load-balancing", "luck"], "--load-balancing"),
    "missing scenario": (["nowhere.yaml"], "nowhere.yaml"),
    "limit of a generated load": (["--limit", "3"], "--limit"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_mistake_in_an_option_is_told_with_it(case: str, capsys: Capture) -> None:
    arguments, message = ARGUMENTS[case]
    ran = run(capsys, "simulate", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize("key", ["gpu", "users", "context_tokens", "fabric"])
def test_plan_still_needs_what_it_sizes_and_compares(
    key: str, tmp_path: Path, capsys: Capture
) -> None:
    head, _, tail = TINY.partition(f"\n{key}:")
    rest = tail.split("\nworkload:")[1] if key == "fabric" else tail.split("\n", maxsplit=1)[1]
    text = f"{head}\n" + (f"workload:{rest}" if key == "fabric" else rest)
    ran = run(capsys, "plan", written(tmp_path, text))
    assert (ran.code, ran.out) == (2, "")
    assert f"{key}: the key is missing. Add the key: plan " in ran.err


# ---------------------------------------------------------------------------- real traces


@pytest.mark.parametrize(
    ("trace", "limit"),
    [
        ("traces/azure/AzureLLMInferenceTrace_conv.csv.xz", 200),
        ("traces/mooncake/conversation_trace.jsonl.xz", 60),
    ],
)
def test_public_trace_runs_over_a_fabric(trace: str, limit: int, capsys: Capture) -> None:
    path = str(reference_path(trace))
    answer = as_json(capsys, "--trace", path, "--limit", str(limit))
    assert answer["design"]["counts"]["finished"] == limit
    assert answer["design"]["transfer_bytes"] > 0
