"""Values that a scenario or a flag cannot have: the line, the key, and what to write instead."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]

# name: (text in the scenario, what replaces it, place told, words of the hint)
VALUES: dict[str, tuple[str, str, str, str]] = {
    "key of another kind": (
        "minimum: 1,",
        "tokens: 1,",
        ":17: workload.output.tokens: ",
        "maximum",
    ),
    "misspelt key of a kind": (
        "minimum: 1,",
        "min: 1,",
        ":17: workload.output.min: ",
        "'minimum'?",
    ),
    "unknown key": ("name: tiny", "name: tiny\nzzz: 1", ":4: zzz: ", "Known keys: schema_version"),
    "zero arrival rate": ("20 /s", "0 /s", ":15: workload.arrivals.rate: ", "from 0.0001"),
    "rate in Hz": ("20 /s", "20 Hz", ":15: workload.arrivals.rate: ", "/s, /min, /h"),
    "unknown arrivals": ("poisson", "poison", ":15: workload.arrivals: ", "closed_loop, poisson"),
    "arrivals without kind": ("kind: poisson, ", "", ":15: workload.arrivals: ", "closed_loop, p"),
    "arrivals as text": (
        "{kind: poisson, rate: 20 /s}",
        "poisson",
        ":15: workload.arrivals: ",
        "a mapping of keys",
    ),
    "variation below zero": (
        "{kind: poisson, rate: 20 /s}",
        "{kind: gamma, rate: 20 /s, cv: -1.0}",
        ":15: workload.arrivals.cv: ",
        "from 0.01",
    ),
    "more users than requests": (
        "{kind: poisson, rate: 20 /s}",
        "{kind: closed_loop, users: 61}",
        ":18: workload.requests: ",
        "from 61",
    ),
    "range reversed": ("minimum: 500", "minimum: 5000", ":16: workload.prompt.maximum: ", "5000"),
    "no end": ("  requests: 60\n", "", ":13: workload: ", "one of the two"),
    "two ends": (
        "requests: 60",
        "requests: 60\n  duration: 1 s",
        ":13: workload: ",
        "one of the two",
    ),
    "no time at all": ("  requests: 60", "  duration: 0 s", ":18: workload.duration: ", "above 0"),
    "prefix of nothing": (
        "requests: 60",
        "requests: 60\n  prefixes: {groups: 2, tokens: 100, zipf_exponent: -1.0}",
        ":19: workload.prefixes.zipf_exponent: ",
        "from 0",
    ),
    "unknown model": ("llama-3.1-8b", "lama-3.1-8b", ":4: model: ", "llama-3.1-8b"),
    "unknown GPU": ("h100-sxm-80gb", "h100", ":5: gpu: ", "h100-sxm-80gb"),
    "GPU as a number": ("h100-sxm-80gb", "100", ":5: gpu: ", "Write a name"),
    "unknown fabric": ("zcube]", "torus]", ":12: fabric.kinds.2: ", "clos, roft, rail-only"),
    "size as text": (
        "zcube]",
        "{kind: multi-plane, shape: {planes: two}}]",
        ":12: fabric.kinds.2.shape.planes: ",
        "integer",
    ),
    "size of another kind": (
        "zcube]",
        "{kind: zcube, shape: {planes: 2}}]",
        ":12: fabric.kinds: ",
        "zcube has no size 'planes'",
    ),
    "planes that divide no server": (
        "zcube]",
        "{kind: multi-plane, shape: {planes: 3}}]",
        ":12: fabric.kinds: ",
        "Write planes as 1, 2, 4, 8",
    ),
    "fabric as a number": ("zcube]", "3]", ":12: fabric.kinds.2: ", "mapping of keys"),
    "fabric without kind": ("zcube]", "{radix: 8}]", ":12: fabric.kinds.2.kind: ", "Add the key"),
    "misspelt key of a fabric": (
        "zcube]",
        "{kind: zcube, radixx: 8}]",
        ":12: fabric.kinds.2.radixx: ",
        "Did you mean 'radix'?",
    ),
    "NaN": (
        "zcube]",
        "{kind: zcube, oversubscription: .nan}]",
        ":12: fabric.kinds.2.oversubscription: ",
        "above 0",
    ),
    "one fabric as text": ("[clos, roft, zcube]", "clos", ":12: fabric.kinds: ", "Write a list"),
    "no fabric": ("[clos, roft, zcube]", "[]", ":12: fabric.kinds: ", "at least 1"),
    "unknown policy": (
        "  kinds",
        "  load_balancing: [ecm]\n  kinds",
        ":12: fabric.load_balancing.0: ",
        "'ecmp', 'flowlet', 'spray', 'dmodk', 'path-source', 'path-destination' or 'assigned'",
    ),
    "policy twice": (
        "  kinds",
        "  load_balancing: [ecmp, ecmp]\n  kinds",
        ":12: fabric.load_balancing: ",
        "once",
    ),
    "endless connections": (
        "  kinds",
        "  queue_pairs: 100000000\n  kinds",
        ":12: fabric.queue_pairs: ",
        "128 or less",
    ),
    "share above one": (
        "tp: 1",
        "tp: 1, gpu_memory_utilization: 1.2",
        ":8: workers.gpu_memory_utilization: ",
        "1 or less",
    ),
    "number in quotes": ("tp: 1", "tp: '1'", ":8: workers.tp: ", "whole number"),
    "target of zero": ("1 s", "0 s", ":19: slo.ttft: ", "above 0"),
    "targets as text": ("{ttft: 1 s, tpot: 50 ms}", "1 s", ":19: slo: ", "a mapping of keys"),
    "router that never hears": (
        "slo:",
        "router: {signal_interval: 0 ms}\nslo:",
        ":19: router.signal_interval: ",
        "above 0",
    ),
    "hand-off without time": (
        "slo:",
        "handoff: {deadline: 0 s}\nslo:",
        ":19: handoff.deadline: ",
        "above 0",
    ),
    "negative seed": ("slo:", "seed: -1\nslo:", ":19: seed: ", "0 or more"),
    "seed beyond 63 bits": ("slo:", f"seed: {2**63}\nslo:", ":19: seed: ", str(2**63 - 1)),
    "key twice in a section": ("tp: 1", "tp: 1, tp: 8", ":8", "'tp' stands twice"),
    "list as a key": ("users: 10", "? [a, b]\n: 10", ":6", "a key is needed"),
    "number as a key": ("users: 10", "users: 10\n3: 4", ":7: 3: ", "as text"),
    "prompts longer than the model": (
        "maximum: 4000",
        "maximum: 900000",
        ": workload: ",
        "Lower prompt",
    ),
    "requests longer than allowed": (
        "tp: 1",
        "tp: 1, max_model_len: 600",
        ": workload: ",
        "Lower prompt",
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_refused_value_is_told_with_its_place(case: str, tmp_path: Path, capsys: Capture) -> None:
    before, after, place, hint = VALUES[case]
    assert before in TINY
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY.replace(before, after, 1))
    ran = run(capsys, "plan", str(path), "--jobs", "1", "--out", str(tmp_path / "out"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"kvfabric: {path}{place}")
    assert ran.err.count("\n") == 1
    assert hint in ran.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["scenario.yaml"]


FILES: dict[str, tuple[bytes, str]] = {
    "nested without end": (b"a: " + b"[" * 1000, "nested too deep"),
    "two documents": (TINY.encode() + b"---\na: 1\n", "another document"),
    "code": (b"name: !!python/object/apply:os.system [pwd]\n", "could not determine a constr"),
    "not text": (b"\xff\xfe\x00", "not UTF-8 text"),
    "tab": (TINY.replace("  nic_rate", "\tnic_rate").encode(), "cannot start any token"),
}


@pytest.mark.parametrize("case", FILES)
def test_unreadable_scenario_is_refused(case: str, tmp_path: Path, capsys: Capture) -> None:
    content, words = FILES[case]
    path = tmp_path / "scenario.yaml"
    path.write_bytes(content)
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"kvfabric: {path}:")
    assert ran.err.count("\n") == 1
    assert words in ran.err


# name: (what the trace section says beside kind and path, place told, words of the hint)
TRACE_VALUES: dict[str, tuple[str, str, str]] = {
    "misspelt key": ("lim: 3", ":13: workload.lim: ", "Did you mean 'limit'?"),
    "far key": ("zzz: 3", ":13: workload.zzz: ", "kind, path, format, on_bad_rows"),
    "no speed": ("speedup: 0", ":13: workload.speedup: ", "above 0"),
    "NaN": ("speedup: .nan", ":13: workload.speedup: ", "1000000 or less"),
    "no window": ("duration: 0 s", ":13: workload.duration: ", "above 0"),
    "policy of rows": ("on_bad_rows: keep", ":13: workload.on_bad_rows: ", "'refuse' or 'skip'"),
    "wrong format": ("format: csv", ":13: workload.format: ", "'mooncake', 'azure', "),
}


@pytest.mark.parametrize("case", TRACE_VALUES)
def test_refused_value_of_a_trace_is_told_with_its_place(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    setting, place, hint = TRACE_VALUES[case]
    path = tmp_path / "scenario.yaml"
    head = TINY.split("workload:", maxsplit=1)[0]
    path.write_text(head + f"workload: {{kind: trace, path: t.jsonl, {setting}}}\n")
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"kvfabric: {path}{place}")
    assert hint in ran.err


CONFIGS: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "config.json:1: not JSON"),
    "a list": ("[1]", "no JSON object"),
    "nested without end": ("[" * 100_000, "nested too deep"),
    "empty": ("{}", "num_attention_heads"),
    "unknown layers": (
        json.dumps(
            {
                "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512,
                "num_attention_heads": 8, "vocab_size": 100, "layer_types": ["warp", "warp"],
            }
        ),
        "'warp'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_unusable_config_is_refused(case: str, tmp_path: Path, capsys: Capture) -> None:
    content, words = CONFIGS[case]
    (tmp_path / "config.json").write_text(content)
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY.replace("llama-3.1-8b", "./config.json"))
    ran = run(capsys, "plan", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("kvfabric: ")
    assert ran.err.count("\n") == 1
    assert words in ran.err


SIZE = ["size", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb"]
TOPOLOGY = ["topology", "--gpus", "1024", "--kind"]
# name: (arguments, start of the message, words of the hint)
FLAGS: dict[str, tuple[list[str], str, str]] = {
    "no context": (SIZE, "--context: ", "32000"),
    "context too long": ([*SIZE, "--context", "999999999"], "--context: ", "at most 131072"),
    "context above the limit": (
        [*SIZE, "--context", "1000", "--max-model-len", "999"],
        "--max-model-len: ",
        "at least 1000",
    ),
    "tp": ([*SIZE, "--context", "9", "--tp", "3"], "--tp: ", "1, 2, 4, 8"),
    "pp": ([*SIZE, "--context", "9", "--pp", "99"], "--pp: ", "1 to 80"),
    "cache type": ([*SIZE, "--context", "9", "--kv-dtype", "q4"], "--kv-dtype: ", "fp8"),
    "weights": ([*SIZE, "--context", "9", "--weight-dtype", "q4"], "--weight-dtype: ", "fp8"),
    "memory": ([*SIZE, "--context", "9", "--kv-memory-gib", "nan"], "--kv-memory-gib: ", "58.11"),
    "kind": ([*TOPOLOGY, "torus"], "--kind: ", "clos, roft, rail-only"),
    "kind with a rate": (
        [*TOPOLOGY, "torus", "--port-rate", "100 Gbps"],
        "--kind: ",
        "clos, roft, rail-only",
    ),
    "size of another kind": ([*TOPOLOGY, "hpn", "--shape", "k=2"], "--shape: ", "gpus_per_leaf"),
    "size without number": ([*TOPOLOGY, "hpn", "--shape", "uplinks"], "--shape: ", "planes=8"),
    "size below zero": ([*TOPOLOGY, "hpn", "--shape", "uplinks=-1"], "--shape: ", "planes=8"),
    "size given twice": (
        [*TOPOLOGY, "multi-plane", "--shape", "planes=2,planes=4"],
        "--shape: ",
        "'planes' stands twice",
    ),
    "no ports": (
        [*TOPOLOGY, "multi-plane", "--shape", "ports=0", "--port-rate", "100 Gbps"],
        "--shape: ",
        "Write 1 or more",
    ),
    "more GPUs than fit": (
        [*TOPOLOGY, "rail-only", "--radix", "4"],
        "--gpus: ",
        "The largest that fits is 64 GPUs",
    ),
    "zero rate": ([*TOPOLOGY, "clos", "--port-rate", "0 bps"], "--port-rate: ", "above 0"),
    "slow ports": (
        [*TOPOLOGY, "clos", "--port-rate", "100 Gbps", "--nic-rate", "400 Gbps"],
        "--port-rate: ",
        "400 Gbit/s",
    ),
    "tiers": ([*TOPOLOGY, "zcube", "--tiers", "3"], "--tiers: ", "Write 1"),
    "part of a server": (["topology", "--kind", "clos", "--gpus", "9"], "--gpus: ", "8 or 16"),
    "no fabric of that size": (
        [*TOPOLOGY, "zcube", "--radix", "8"],
        "--gpus: ",
        "Nearest sizes: 16",
    ),
    "endless speed-up": (["plan", "--trace", "x", "--speedup", "inf"], "--speedup: ", "1000000"),
    "limit of a generator": (["plan", "--limit", "3"], "--limit: ", "--trace"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_refused_flag_is_named(case: str, capsys: Capture) -> None:
    arguments, start, hint = FLAGS[case]
    ran = run(capsys, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"kvfabric: {start}")
    assert ran.err.count("\n") == 1
    assert hint in ran.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "nowhere.yaml"], 2),
        ([*TOPOLOGY, "torus"], 2),
        (["plan", "--seed", "-1"], 2),
    ],
)
def test_process_ends_with_one_line_and_its_code(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from kvfabric.app.main import main; main()", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr.startswith("kvfabric: ")
    assert ran.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
