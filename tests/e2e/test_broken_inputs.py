"""Broken inputs: one clear message each, the right exit code, nothing on stdout, no traceback."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]

GOOD_ROW = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
LATER_ROW = GOOD_ROW.replace('"timestamp": 0', '"timestamp": 9')
TRACE = TINY.split("workload:", maxsplit=1)[0] + "workload: {kind: trace, path: trace.jsonl}\n"

SCENARIOS: dict[str, tuple[Callable[[str], str], str, str]] = {
    "misspelt key": (
        lambda s: s.replace("nic_rate", "nic_rat"),
        ":10: fabric.nic_rat: ",
        "Did you mean 'nic_rate'?",
    ),
    "bare number": (lambda s: s.replace("400 Gbit/s", "400"), "fabric.nic_rate", "unit"),
    "unknown unit": (lambda s: s.replace("400 Gbit/s", "400 Gbaud"), "fabric.nic_rate", "Units"),
    "negative rate": (lambda s: s.replace("400 Gbit/s", "-400 Gbit/s"), "nic_rate", "such as"),
    "zero rate": (lambda s: s.replace("400 Gbit/s", "0 Gbit/s"), "fabric.nic_rate", "above 0"),
    "NaN": (lambda s: s.replace("20 /s", ".nan"), "arrivals", "such as '2.5 /s'"),
    "unknown model": (lambda s: s.replace("llama-3.1-8b", "llama-9"), "model", "Did you mean"),
    "unknown gpu": (lambda s: s.replace("h100-sxm-80gb", "h100-xyz"), "gpu", "Did you mean"),
    "unknown fabric": (lambda s: s.replace("[clos, roft, zcube]", "[torus]"), "fabric", "clos"),
    "unknown policy": (
        lambda s: s.replace("kinds:", "load_balancing: [magic]\n  kinds:"),
        "fabric.load_balancing",
        "ecmp",
    ),
    "unknown generator": (lambda s: s.replace("kind: poisson", "kind: poison"), "arrivals", ""),
    "too few ports": (lambda s: s.replace("6.4 Tbit/s", "800 Gbit/s"), "fabric", ""),
    "no whole servers": (lambda s: s.replace("prefill: 20", "prefill: 19"), "workers", "Change"),
    "no workers": (lambda s: s.replace("decode: 12", "decode: 0"), "workers.decode", "1 or more"),
    "tp of no server": (lambda s: s.replace("tp: 1", "tp: 3"), "tp", ""),
    "wrong version": (lambda s: s.replace("version: 1", "version: 7"), "schema_version", "1"),
    "missing key": (lambda s: s.replace("gpu: h100-sxm-80gb\n", ""), "gpu", "Add the key"),
    "key twice": (lambda s: s + "name: again\n", ":20", "stands twice"),
    "no YAML": (lambda s: s + "{", ":20", "YAML"),
    "empty file": (lambda _: "", "scenario.yaml", "schema_version: 1"),
    "list instead of mapping": (lambda _: "- 1\n", "scenario.yaml", "schema_version: 1"),
    "text for a number": (lambda s: s.replace("users: 10", "users: ten"), "users", "integer"),
    "block size of no hash": (
        lambda s: s.replace("tp: 1}", "tp: 1, block_size: 48}").replace(
            "  requests", "  prefixes: {groups: 2, tokens: 64}\n  requests"
        ),
        "workers.block_size",
        "divides it",
    ),
    "context too long": (lambda s: s.replace("2000", "900000"), "context", "Write at most"),
    "output range reversed": (lambda s: s.replace("maximum: 60", "maximum: 0"), "output", "1"),
    "model is no JSON": (lambda s: s.replace("llama-3.1-8b", "./scenario.yaml"), "model", "JSON"),
}


@pytest.mark.parametrize("case", SCENARIOS)
def test_broken_scenario_gives_one_located_message(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    change, place, hint = SCENARIOS[case]
    path = tmp_path / "scenario.yaml"
    path.write_text(change(TINY))
    ran = run(capsys, "plan", str(path), "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("kvfabric: ")
    assert ran.err.count("\n") == 1
    assert place in ran.err
    assert hint in ran.err
    assert not (tmp_path / "out").exists()


BAD_ROWS: dict[str, tuple[str, str]] = {
    "zero tokens": ('{"timestamp": 1, "input_length": 0, "output_length": 5}', "input_length"),
    "negative": ('{"timestamp": 1, "input_length": -4, "output_length": 5}', "input_length"),
    "NaN": ('{"timestamp": NaN, "input_length": 4, "output_length": 5}', "timestamp"),
    "no JSON": ("hello", "JSON"),
    "missing key": ('{"timestamp": 1, "input_length": 4}', "output_length"),
    "back in time": (LATER_ROW + GOOD_ROW.strip(), "time goes back"),
    "wrong number of hash ids": (
        '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1]}',
        "hash_ids",
    ),
    "hash id twice": (
        '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1, 1]}',
        "twice",
    ),
    "prompt longer than the model": (
        '{"timestamp": 1, "input_length": 300000, "output_length": 5, "hash_ids": [1]}',
        "",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_row_of_a_trace_is_refused_with_its_line(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    rows, word = BAD_ROWS[case]
    (tmp_path / "trace.jsonl").write_text(GOOD_ROW + rows + "\n")
    path = tmp_path / "scenario.yaml"
    path.write_text(TRACE)
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (2, "")
    line = 1 + len(rows.splitlines())
    assert f"trace.jsonl: line {line}: " in ran.err
    assert word in ran.err


@pytest.mark.parametrize("content", [None, b"", b"\x1f\x8b broken"], ids=["none", "empty", "gz"])
def test_unreadable_trace_is_refused(
    content: bytes | None, tmp_path: Path, capsys: Capture
) -> None:
    if content is not None:
        (tmp_path / "trace.jsonl").write_bytes(content)
    path = tmp_path / "scenario.yaml"
    path.write_text(TRACE)
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert "trace.jsonl" in ran.err


SIZE = ["size", "--gpu", "h100-sxm-80gb", "--context", "9"]
COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "more GPUs than the fabric holds": (
        ["topology", "--kind", "clos", "--gpus", "100000", "--radix", "32"],
        2,
        "The largest that fits is 8192",
    ),
    "ports that exceed the radix": (
        ["topology", "--kind", "zcube", "--gpus", "1024", "--radix", "31"],
        2,
        "Nearest sizes",
    ),
    "rate without unit": (
        ["topology", "--kind", "zcube", "--gpus", "1024", "--port-rate", "200"],
        2,
        "--port-rate",
    ),
    "unknown option": (["topology", "--knd", "zcube"], 2, "--knd"),
    "unknown model": (
        [*SIZE, "--model", "lama"],
        2,
        "--model",
    ),
    "heads not divided": (
        [*SIZE, "--model", "llama-3.1-8b", "--tp", "3"],
        2,
        "does not divide 32 attention heads",
    ),
    "speed-up of a generator": (["plan", "--speedup", "3"], 2, "--speedup"),
    "speed-up of nothing": (["plan", "--speedup", "0", "--trace", "x"], 2, "above 0"),
    "negative seed": (["plan", "--seed", "-1"], 2, "seed"),
    "missing scenario": (["plan", "nowhere.yaml"], 2, "nowhere.yaml"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_broken_command_line_gives_one_message(case: str, capsys: Capture) -> None:
    arguments, code, words = COMMANDS[case]
    ran = run(capsys, *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("kvfabric: ")
    assert words in ran.err


def test_unknown_attention_is_refused_with_its_key(tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "new", "num_hidden_layers": 2, "warp_attention": {"x": 1}}')
    ran = run(capsys, *SIZE, "--model", str(config))
    assert (ran.code, ran.out) == (2, "")
    assert "model_type" in ran.err or "warp_attention" in ran.err


def test_what_does_not_fit_exits_with_1_and_says_by_how_much(capsys: Capture) -> None:
    ran = run(
        capsys,
        *[
            "size",
            "--model",
            "llama-3.1-405b",
            "--gpu",
            "h100-sxm-80gb",
            "--context",
            "9",
            "--tp",
            "1",
        ],
    )
    assert ran.code == 1
    assert "does not fit: weights and reserves exceed the memory of a GPU by" in ran.out


def test_plan_of_a_model_that_does_not_fit_exits_with_1(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY.replace("llama-3.1-8b", "llama-3.1-70b"))
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (1, "")
    assert "does not fit" in ran.err


def test_installed_command_shows_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY.replace("nic_rate", "nic_rat"))
    command = [sys.executable, "-c", "from kvfabric.app.main import main; main()", "plan"]
    ran = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr
    assert "Did you mean 'nic_rate'?" in ran.stderr
