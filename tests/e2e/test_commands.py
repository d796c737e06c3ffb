"""The commands as a user runs them: what they print, that they repeat, what they write."""

import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import TINY, run
from reference import reference_path

Capture = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parents[2] / "examples"
DESIGN_KEYS = {
    "switches", "optics", "links", "switch_hops_max", "cost_low_usd", "cost_typical_usd",
    "cost_high_usd", "ttft", "tpot", "rates", "busiest_links", "counts", "load",
}  # fmt: skip


def as_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    ran = run(capsys, *arguments, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


# ---------------------------------------------------------------------------- size


def test_size_gives_the_headline_figures(capsys: Capture) -> None:
    sizing = as_json(
        capsys, "size", "--model", "llama-3.1-70b", "--users", "100", "--context", "32000",
        "--gpu", "h100-sxm-80gb",
    )  # fmt: skip
    assert sizing["kv_bytes_per_token"] == 327_680
    assert sizing["kv_bytes_per_user"] == 10_485_760_000
    assert sizing["kv_bytes_total"] == 1_048_576_000_000
    assert sizing["gpus_for_kv"] == 13  # of 79.19 GiB visible, not the 80 GB of the name
    assert sizing["gpus_needed"] >= 13
    assert sizing["fits"] is True


def test_size_repeats_a_logged_vllm_start(capsys: Capture) -> None:
    """vLLM 0.19 on one H100: 58.11 GiB for KV gave 476,016 tokens, 58.11x (llm-d-planner #205)."""
    sizing = as_json(
        capsys, "size", "--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--tp", "1",
        "--kv-memory-gib", "58.11", "--max-model-len", "8192", "--block-size", "16",
    )  # fmt: skip
    assert sizing["num_tokens"] == pytest.approx(476_016, rel=1e-3)
    assert sizing["max_concurrency"] == pytest.approx(58.11, rel=3e-3)


def test_size_takes_a_config_file(tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
                "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
                "intermediate_size": 28672, "max_position_embeddings": 131072,
                "torch_dtype": "bfloat16", "tie_word_embeddings": False,
            }
        )
    )  # fmt: skip
    sizing = as_json(
        capsys, "size", "--model", str(config), "--gpu", "h100-sxm-80gb", "--context", "32000"
    )
    assert sizing["kv_bytes_per_token"] == 327_680


# ---------------------------------------------------------------------------- topology


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("zcube 64 200", (64, 1024, 2048, 4096, 2.93939, 3, 2)),
        ("roft 32 400", (160, 0, 3072, 6144, 5.47214, 6, 5)),
        ("clos 32 400", (160, 1024, 2048, 4096, None, 6, 5)),
    ],
)
def test_topology_gives_the_published_counts(
    arguments: str, expected: tuple[float | None, ...], capsys: Capture
) -> None:
    """1,024 GPUs, SIGCOMM 2025 paper on ZCube, tables 3 and 7; Clos has RoFT's switches."""
    kind, radix, rate = arguments.split()
    report = as_json(
        capsys, "topology", "--kind", kind, "--gpus", "1024", "--radix", radix,
        "--port-rate", f"{rate} Gbit/s",
    )  # fmt: skip
    keys = (
        "switches", "links_copper", "links_fibre", "optics", "avg_path_length", "diameter",
        "switch_hops_max",
    )  # fmt: skip
    found = tuple(report[key] for key in keys)
    assert tuple(f for f, e in zip(found, expected, strict=True) if e is not None) == tuple(
        e for e in expected if e is not None
    )


@pytest.mark.parametrize(("kind", "switches"), [("clos", 24), ("roft", 24), ("zcube", 16)])
def test_topology_takes_a_catalog_switch_by_default(
    kind: str, switches: int, capsys: Capture
) -> None:
    report = as_json(capsys, "topology", "--kind", kind, "--gpus", "1024")
    assert report["switches"] == switches  # 3N/R and 2N/R of 51.2 Tbit/s


# ---------------------------------------------------------------------------- plan


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def test_plan_prints_the_same_bytes_twice(tiny: Path, capsys: Capture) -> None:
    first = run(capsys, "plan", str(tiny), "--format", "json", "--jobs", "1")
    second = run(capsys, "plan", str(tiny), "--format", "json", "--jobs", "2")
    assert first.code == 0
    assert first == second


def test_plan_seed_changes_the_load(tiny: Path, capsys: Capture) -> None:
    first = as_json(capsys, "plan", str(tiny))
    other = as_json(capsys, "plan", str(tiny), "--seed", "7")
    assert first["designs"][0]["log_digest"] != other["designs"][0]["log_digest"]


def test_plan_json_has_what_an_architect_needs(tiny: Path, capsys: Capture) -> None:
    answer = as_json(capsys, "plan", str(tiny))
    assert [d["fabric"] for d in answer["designs"]] == [
        *["clos"] * 2, *["roft"] * 2, *["zcube"] * 2,
    ]  # fmt: skip
    for design in (*answer["designs"], answer["aggregated"]):
        counts = design["counts"]
        ended = counts["finished"] + counts["rejected"] + counts["aborted"] + counts["unfinished"]
        assert counts["arrived"] == ended == 60
        assert {"p50_ns", "p90_ns", "p99_ns"} <= design["ttft"].keys()
    for design in answer["designs"]:
        assert design.keys() >= DESIGN_KEYS
    topics = {verdict["topic"] for verdict in answer["verdicts"]}
    assert topics >= {"load", "slo", "fabric", "load_balancing", "cost", "disaggregation"}


def test_plan_text_shows_sizing_parts_latencies_and_verdict(tiny: Path, capsys: Capture) -> None:
    ran = run(capsys, "plan", str(tiny))
    assert (ran.code, ran.err) == (0, "")
    for words in (
        "KV cache", "131,072 B/token", "Parts and price", "What users get",
        "Where the time to first token goes", "Verdict", "zcube assigned", "aggregated",
        "Does not model",
    ):  # fmt: skip
        assert words in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= 125


def test_plan_out_writes_what_it_prints(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    ran = run(capsys, "plan", str(tiny), "--out", str(tmp_path / "result"))
    assert (tmp_path / "result" / "plan.txt").read_text() == ran.out
    answer = json.loads((tmp_path / "result" / "plan.json").read_text())
    assert len(answer["designs"]) == 6


def test_plan_show_names_the_origin_of_each_value(tiny: Path, capsys: Capture) -> None:
    ran = run(capsys, "plan", str(tiny), "--seed", "9", "--show")
    assert ran.code == 0
    assert "seed: 9  # flag" in ran.out
    assert f'name: "tiny"  # {tiny}' in ran.out
    assert "block_size: 64  # default" in ran.out


@pytest.mark.parametrize("arguments", [[], [str(EXAMPLES / "burst-moe.yaml")]])
def test_plan_show_prints_a_scenario_that_can_be_run(
    arguments: list[str], tmp_path: Path, capsys: Capture
) -> None:
    shown = run(capsys, "plan", *arguments, "--show").out
    (tmp_path / "again.yaml").write_text(shown)
    again = run(capsys, "plan", str(tmp_path / "again.yaml"), "--show").out
    values = [[line.split("  #")[0] for line in text.splitlines()] for text in (shown, again)]
    assert values[0] == values[1]


def mooncake_rows(bad: bool = False) -> str:
    rows = [
        {"timestamp": 50 * i, "input_length": 700, "output_length": 4, "hash_ids": [1, 2 + i // 2]}
        for i in range(20)
    ]
    if bad:
        rows[3]["input_length"] = 0
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_xz(path: Path, text: str) -> None:
    path.write_bytes(lzma.compress(text.encode()))


def write_gz(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def write_plain(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize(
    ("suffix", "write"), [("", write_plain), (".gz", write_gz), (".xz", write_xz)]
)
def test_plan_takes_a_mooncake_trace(
    suffix: str, write: Callable[[Path, str], None], tiny: Path, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / f"trace.jsonl{suffix}"
    write(path, mooncake_rows())
    answer = as_json(capsys, "plan", str(tiny), "--trace", str(path))
    assert answer["workload"]["num_requests"] == 20
    assert answer["designs"][0]["num_cached_tokens"] > 0


def test_plan_takes_an_azure_trace(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"2023-11-16 18:15:{i:02}.6805900,{300 + i},{2 + i}\n" for i in range(20))
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    answer = as_json(capsys, "plan", str(tiny), "--trace", str(path), "--speedup", "10")
    assert answer["designs"][0]["counts"]["finished"] == 20


def test_plan_counts_and_lists_skipped_rows(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "trace.jsonl").write_text(mooncake_rows(bad=True))
    head = TINY.split("workload:", maxsplit=1)[0]
    path = tmp_path / "skip.yaml"
    path.write_text(head + "workload: {kind: trace, path: trace.jsonl, on_bad_rows: skip}\n")
    answer = as_json(capsys, "plan", str(path))
    assert answer["workload"]["num_requests"] == 19
    assert [row["line"] for row in answer["workload"]["bad_rows"]] == [4]
    assert "1 rows of the trace were skipped" in run(capsys, "plan", str(path)).out


def test_example_with_bursts_runs(capsys: Capture) -> None:
    answer = as_json(capsys, "plan", str(EXAMPLES / "burst-moe.yaml"))
    assert len(answer["designs"]) == 9
    assert all(design["counts"]["finished"] == 200 for design in answer["designs"])


def test_example_with_the_azure_trace_runs(capsys: Capture) -> None:
    trace = reference_path("traces/azure/AzureLLMInferenceTrace_conv.csv.xz")
    answer = as_json(
        capsys, "plan", str(EXAMPLES / "azure-16gpu.yaml"), "--trace", str(trace), "--limit", "300"
    )
    assert all(design["counts"]["finished"] == 300 for design in answer["designs"])


@pytest.mark.slow
def test_example_with_the_mooncake_trace_runs(capsys: Capture) -> None:
    """1,024 GPUs over three fabrics; 500 of the 12,031 requests, so that the suite stays short."""
    trace = reference_path("traces/mooncake/conversation_trace.jsonl.xz")
    answer = as_json(
        capsys, "plan", str(EXAMPLES / "mooncake-1024gpu.yaml"), "--trace", str(trace),
        "--limit", "500",
    )  # fmt: skip
    assert answer["plan"]["num_gpus"] == 1024
    assert all(design["counts"]["finished"] == 500 for design in answer["designs"])
    assert [answer["fabrics"][kind]["switches"] for kind in ("clos", "roft", "zcube")] == [
        24, 24, 16,
    ]  # fmt: skip


# ---------------------------------------------------------------------------- help


@pytest.mark.parametrize("command", [[], ["plan"], ["size"], ["topology"]])
def test_help_explains_every_command(command: list[str], capsys: Capture) -> None:
    ran = run(capsys, *command, "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: ")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['kvfabric', '--help']\n"
        "from kvfabric.app.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'numba', 'pydantic', 'yaml', 'rich', 'torch')"
        " if m in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
