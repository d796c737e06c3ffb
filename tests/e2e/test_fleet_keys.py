"""Scenario keys of unlike workers, failures and the KV pool as a user writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import TINY, run
from profiles import META, write_profile
from reference import reference_path

from kvfabric.app.scenario_file import parse_scenario

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "kv-pool-mooncake.yaml"

APART = TINY.replace("prefill: 20, decode: 12, tp: 1", "prefill: 4, decode: 4, tp: 2")
SESSIONS = APART.replace("  requests: 60", "  prefixes: {groups: 3, tokens: 2048}\n  requests: 60")
POOL = "kv_pool: {host: {capacity: 1 TB, read: 500 GB/s}}\n"
KINDS = "kinds: [clos, roft, zcube]"


def written(folder: Path, text: str) -> str:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return str(path)


def simulated(folder: Path, capsys: Capture, text: str, *arguments: str) -> dict[str, Any]:
    ran = run(capsys, "simulate", written(folder, text), "--format", "json", *arguments)
    assert (ran.code, ran.err) == (0, "")
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def with_workers(keys: str, text: str = APART) -> str:
    assert "tp: 2}" in text
    return text.replace("tp: 2}", f"{keys}}}")


# ---------------------------------------------------------------------------- unlike workers


@pytest.mark.parametrize(
    ("keys", "num_gpus", "told"),
    [
        ("tp: 2, decode_tp: 4", 24, "4 prefill workers of TP2 + 4 decode workers of TP4"),
        ("tp: 2, decode_tp: 2", 16, "4 prefill + 4 decode workers of TP2"),
        (
            "tp: 2, prefill_cp: 3", 32,
            "4 prefill workers of CP3 x TP2 (all_gather) + 4 decode workers of TP2",
        ),
        (
            "tp: 4, prefill_cp: 4, cp_exchange: ring_pass_q, decode_tp: 2", 72,
            "4 prefill workers of CP4 x TP4 (ring_pass_q) + 4 decode workers of TP2",
        ),
    ],
)  # fmt: skip
def test_workers_of_two_sizes_serve_the_load(
    keys: str, num_gpus: int, told: str, tmp_path: Path, capsys: Capture
) -> None:
    text = with_workers(keys)
    answer = simulated(tmp_path, capsys, text)
    assert answer["design"]["counts"]["finished"] == 60
    assert answer["fleet"]["num_gpus"] == answer["design"]["num_gpus"] == num_gpus
    out = run(capsys, "simulate", written(tmp_path, text)).out
    assert told in out.replace("\n", " ")


@pytest.mark.parametrize("exchange", ["all_gather", "ring_pass_kv", "ring_pass_q", "all_to_all"])
def test_every_exchange_is_taken(exchange: str, tmp_path: Path, capsys: Capture) -> None:
    text = with_workers(f"tp: 8, prefill_cp: 2, cp_exchange: {exchange}")
    answer = simulated(tmp_path, capsys, text, "--fabric", "roft", "--load-balancing", "assigned")
    assert answer["fleet"]["cp_exchange"] == exchange
    assert answer["design"]["counts"]["finished"] == 60


def test_parts_are_those_of_all_gpus_of_unlike_workers(tmp_path: Path, capsys: Capture) -> None:
    text = with_workers("tp: 2, prefill_cp: 4, decode_tp: 8").replace(KINDS, "kinds: [clos]")
    ran = run(capsys, "plan", written(tmp_path, text), "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    answer = json.loads(ran.out)
    assert answer["plan"]["num_gpus"] == 64
    assert answer["fabrics"]["clos"]["bill_of_materials"]["num_gpus"] == 64
    assert answer["aggregated"]["counts"]["finished"] == 60
    text_out = run(capsys, "plan", written(tmp_path, text)).out
    assert "KV cache of prefill workers" in text_out
    assert "each context-parallel rank is a worker of its own" in text_out.replace("\n", " ")


def test_blocks_of_decode_workers_are_given_apart(tmp_path: Path, capsys: Capture) -> None:
    text = with_workers("tp: 2, num_blocks: 900, decode_num_blocks: 700, max_model_len: 9000")
    answer = simulated(tmp_path, capsys, text)
    fleet = answer["fleet"]
    assert (fleet["num_blocks"], fleet["decode_num_blocks"]) == (900, 700)
    assert any(note.startswith("700 KV blocks per decode worker") for note in answer["notes"])


def test_profile_is_needed_for_both_sizes(tmp_path: Path, capsys: Capture) -> None:
    perf = "perf: {kind: profile, path: measured, collectives: pcie-peer}\n"
    text = with_workers("tp: 1, decode_tp: 2, max_model_len: 9000") + perf
    text = text.replace("prefill: 4", "prefill: 8")
    folder = write_profile(tmp_path / "measured")
    (folder / "meta.yaml").write_text(META.replace("round/model", "llama-3.1-8b"))
    ran = run(capsys, "simulate", written(tmp_path, text))
    assert ran.code == 2
    assert "tp2" in ran.err
    folder = write_profile(tmp_path / "measured", name="profile_tp2")
    (folder / "meta.yaml").write_text(META.replace("round/model", "llama-3.1-8b"))
    assert simulated(tmp_path, capsys, text)["design"]["counts"]["finished"] == 60


# ---------------------------------------------------------------------------- failures

FAILURES = """failures:
  - {worker: prefill-1, at: 1 s, back_after: 500 ms}
  - {worker: decode-0, at: 1200 ms}
"""


def test_workers_that_die_are_told_with_what_they_cost(tmp_path: Path, capsys: Capture) -> None:
    answer = simulated(tmp_path, capsys, APART + FAILURES)
    design = answer["design"]
    assert design["num_restarts"] > 0
    assert design["counts"]["finished"] + design["counts"]["failed"] == 60
    assert "failures of links and switches" in answer["not_modelled"]
    out = run(capsys, "simulate", written(tmp_path, APART + FAILURES)).out.replace("\n  ", " ")
    assert "prefill-1 at 1 s, back at 1.5 s; decode-0 at 1.2 s, never back" in out
    assert f"{design['num_restarts']} restarts" in out


def test_plan_counts_restarts_of_every_design(tmp_path: Path, capsys: Capture) -> None:
    text = APART.replace(KINDS, "kinds: [roft]") + FAILURES
    ran = run(capsys, "plan", written(tmp_path, text), "--format", "json")
    answer = json.loads(ran.out)
    designs = [*answer["designs"], answer["aggregated"]]
    assert all(design["num_restarts"] > 0 for design in designs)
    assert [verdict["finding"] for verdict in answer["verdicts"]].count("workers") == 1


def test_requests_of_a_fleet_without_workers_left_fail(tmp_path: Path, capsys: Capture) -> None:
    dead = ", ".join(f"{{worker: decode-{i}, at: 0 s}}" for i in range(4))
    counts = simulated(tmp_path, capsys, f"{APART}failures: [{dead}]\n")["design"]["counts"]
    assert counts["failed"] == counts["arrived"] == 60


# ---------------------------------------------------------------------------- the KV pool


@pytest.mark.parametrize("policy", ["least_loaded", "local_prefix", "pool_prefix"])
def test_pool_tells_where_prompts_were_found(policy: str, tmp_path: Path, capsys: Capture) -> None:
    pool = f"""kv_pool:
  host: {{capacity: 1 TB, read: 500 GB/s}}
  storage: {{capacity: 1 PB, read: 500 GB/s}}
  policy: {policy}
  fetch: layer_wise
  write: through
  hand_back: true
  lag: 10 ms
""".replace("1 PB", "1000 TB")
    answer = simulated(tmp_path, capsys, SESSIONS + pool)
    found = answer["design"]["kv_pool"]
    assert answer["fleet"]["kv_pool"]["policy"] == policy
    parts = [found[f"{place}_tokens"] for place in ("hbm", "host", "remote", "storage")]
    assert 0 < sum(parts) < found["num_prompt_tokens"]
    assert found["hit_rate"] == pytest.approx(sum(parts) / found["num_prompt_tokens"], abs=1e-6)
    out = run(capsys, "simulate", written(tmp_path, SESSIONS + pool)).out
    assert f"{found['hit_rate']:.1%} of the prompt tokens found (HBM " in out
    assert "1 TB at 500 GB/s of host memory per server, 1000 TB" in out


def test_plan_tells_where_prompts_were_found(tmp_path: Path, capsys: Capture) -> None:
    text = SESSIONS.replace(KINDS, "kinds: [roft]") + POOL
    out = run(capsys, "plan", written(tmp_path, text)).out
    assert out.count("- KV pool, ") == 3  # two policies, and the fleet without disaggregation


def test_load_without_prefixes_has_nothing_to_reuse(tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "load.csv"
    rows = "".join(f"2023-11-16 18:15:{i:02d}.0,500,20\n" for i in range(10, 40))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    answer = simulated(tmp_path, capsys, APART + POOL, "--trace", str(trace))
    assert answer["design"]["kv_pool"] is None
    assert any("nothing can be reused" in note for note in answer["notes"])


def test_requests_tell_what_was_fetched_for_them(tmp_path: Path, capsys: Capture) -> None:
    pool = POOL.replace("}}", "}, policy: least_loaded}")
    keys = "tp: 2, enable_prefix_caching: false"
    text = with_workers(keys, SESSIONS) + pool
    out = tmp_path / "result"
    answer = simulated(tmp_path, capsys, text, "--out", str(out))
    header, *rows = (line.split(",") for line in (out / "requests.csv").read_text().splitlines())
    column = header.index("num_fetched_tokens")
    found = answer["design"]["kv_pool"]
    fetched = sum(int(row[column]) for row in rows)
    assert fetched == found["host_tokens"] + found["remote_tokens"] > 0
    again = run(capsys, "simulate", str(out / "scenario.yaml"), "--format", "json")
    assert json.loads(again.out)["design"] == answer["design"]


def test_example_of_a_pool_is_read() -> None:
    assert parse_scenario(EXAMPLE.read_text(), "example").kv_pool is not None


def test_example_of_a_pool_finds_prompts(capsys: Capture) -> None:
    trace = str(reference_path("traces/mooncake/conversation_trace.jsonl.xz"))
    arguments = ["--trace", trace, "--limit", "150", "--format", "json"]
    ran = run(capsys, "simulate", str(EXAMPLE), *arguments)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["design"]["kv_pool"]["hit_rate"] > 0


# ---------------------------------------------------------------------------- shown and refused


def test_show_prints_all_keys_and_can_be_run(tmp_path: Path, capsys: Capture) -> None:
    text = with_workers("tp: 2, decode_tp: 4, prefill_cp: 2", SESSIONS)
    text += FAILURES + POOL.replace("}}", "}, lag: 5 ms, storage: {capacity: 1 GB, read: 1 GB/s}}")
    path = written(tmp_path, text)
    shown = run(capsys, "simulate", path, "--show").out
    for line in (
        f"decode_tp: 4  # {path}", f"prefill_cp: 2  # {path}", 'cp_exchange: "all_gather"  # def',
        f'capacity: "1000000000 B"  # {path}', 'policy: "pool_prefix"  # default',
        'fetch: "before"  # default', "hand_back: false  # default", f'lag: "5 ms"  # {path}',
        '{"worker": "prefill-1", "at": "1 s", "back_after": "500 ms"}', '"back_after": null}',
    ):  # fmt: skip
        assert line in shown
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    twice = [run(capsys, "simulate", str(p), "--format", "json").out for p in (path, again)]
    assert twice[0] == twice[1]


REFUSED: dict[str, tuple[str, str, str]] = {
    "decode_tp of 3": ("tp: 2, decode_tp: 3", ":8: workers.decode_tp: ", "Write 1, 2, 4 or 8"),
    "decode_tp of 0": ("tp: 2, decode_tp: 0", ":8: workers.decode_tp: ", "1 or more"),
    "no servers": ("tp: 2, decode_tp: 1", ":8: workers: 12 GPUs do not fill", "number of workers"),
    "no rank": ("tp: 2, prefill_cp: 0", ":8: workers.prefill_cp: ", "1 or more"),
    "unknown exchange": ("tp: 2, cp_exchange: gossip", ":8: workers.cp_exchange: ", "ring_pass_q"),
    "undivided heads": (
        "tp: 8, prefill_cp: 3, cp_exchange: all_to_all", ":8: workers.cp_exchange: ", "ring"
    ),
    "blocks of one size": (
        "tp: 2, decode_tp: 4, num_blocks: 99", ":8: workers.num_blocks: ", "decode_num_blocks"
    ),
    "few blocks": ("tp: 2, decode_num_blocks: 1", ":8: workers.decode_num_blocks: ", "2 or more"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_worker_that_cannot_be_is_told_with_its_place(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    keys, place, hint = REFUSED[case]
    check_refused(tmp_path, capsys, with_workers(keys), place, hint)


@pytest.mark.parametrize("key", ["decode_tp: 2", "decode_num_blocks: 500", "prefill_cp: 2"])
def test_keys_of_other_workers_need_decode_workers(
    key: str, tmp_path: Path, capsys: Capture
) -> None:
    text = with_workers(f"tp: 2, {key}").replace("decode: 4", "decode: 0")
    check_refused(tmp_path, capsys, text, f":8: workers.{key.partition(':')[0]}: ", "1 or more")


NUM_LINES = len(SESSIONS.splitlines())
TAIL: dict[str, tuple[str, str, str]] = {
    "unknown worker": (
        "failures:\n- {worker: prefill-0, at: 1 s}\n- {worker: prefill-9, at: 1 s}",
        f":{NUM_LINES + 3}: failures.1.worker: no worker 'prefill-9'",
        "prefill-0 to prefill-3, decode-0 to decode-3",
    ),
    "bare instant": ("failures: [{worker: decode-0, at: 5}]", "failures.0.at: ", "unit"),
    "no instant": ("failures: [{worker: decode-0}]", "failures.0.at: ", "Add the key"),
    "back at once": (
        "failures: [{worker: decode-0, at: 1 s, back_after: 0 s}]",
        "failures.0.back_after: ", "above 0",
    ),
    "unknown key": (
        "failures: [{worker: decode-0, at: 1 s, back: 1 s}]", "failures.0.back: ", "back_after"
    ),
    "no host memory": ("kv_pool: {policy: pool_prefix}", ": kv_pool.host: ", "Add the key"),
    "bare capacity": (
        "kv_pool: {host: {capacity: 5, read: 1 GB/s}}", ": kv_pool.host.capacity: ", "unit"
    ),
    "no capacity": (
        "kv_pool: {host: {capacity: 0 B, read: 1 GB/s}}", ": kv_pool.host.capacity: ", "above 0"
    ),
    "less than a block": (
        "kv_pool: {host: {capacity: 1 MB, read: 1 GB/s}}", ": kv_pool.host.capacity: ", "one block"
    ),
    "network rate": (
        "kv_pool: {host: {capacity: 1 TB, read: 1 Gbit/s}}", ": kv_pool.host.read: ", "B/s"
    ),
    "unknown policy": (POOL.strip()[:-1] + ", policy: best}", ": kv_pool.policy: ", "pool_prefix"),
    "unknown fetch": (POOL.strip()[:-1] + ", fetch: late}", ": kv_pool.fetch: ", "layer_wise"),
    "unknown write": (POOL.strip()[:-1] + ", write: never}", ": kv_pool.write: ", "on_eviction"),
    "hand_back of text": (
        POOL.strip()[:-1] + ", hand_back: maybe}", ": kv_pool.hand_back: ", "true or false"
    ),
    "no lag": (POOL.strip()[:-1] + ", lag: 0 s}", ": kv_pool.lag: ", "above 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", TAIL)
def test_mistake_in_failures_and_pool_is_told_with_its_place(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    section, place, hint = TAIL[case]
    check_refused(tmp_path, capsys, f"{SESSIONS}{section}\n", place, hint)


def check_refused(folder: Path, capsys: Capture, text: str, place: str, hint: str) -> None:
    ran = run(capsys, "simulate", written(folder, text))
    assert (ran.code, ran.out) == (2, "")
    assert place in ran.err
    assert hint in ran.err
    assert len(ran.err.splitlines()) == 1
