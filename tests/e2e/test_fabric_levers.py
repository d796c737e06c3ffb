"""Scenario keys that decide whether a fabric matters, as a user writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]

APART = TINY.replace("prefill: 20, decode: 12, tp: 1", "prefill: 4, decode: 4, tp: 2")
MLA = (
    TINY.replace("prefill: 20, decode: 12, tp: 1", "prefill: 2, decode: 2, tp: 8")
    .replace("llama-3.1-8b", "deepseek-v3")
    .replace("h100-sxm-80gb", "h200-sxm-141gb")
)
SESSIONS = APART.replace(
    "  requests: 60", "  prefixes: {groups: 3, tokens: 2048}\n  requests: 60"
).replace("prefill: 4, decode: 4", "prefill: 24, decode: 8")
POOL = "kv_pool: {host: {capacity: 1 TB, read: 500 GB/s}, policy: least_loaded}\n"


def written(folder: Path, text: str) -> str:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return str(path)


def simulated(folder: Path, capsys: Capture, text: str, *arguments: str) -> dict[str, Any]:
    ran = run(capsys, "simulate", written(folder, text), "--format", "json", *arguments)
    assert (ran.code, ran.err) == (0, "")
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def digest(folder: Path, capsys: Capture, text: str) -> str:
    return str(simulated(folder, capsys, text)["design"]["log_digest"])


DEFAULTS = {
    "senders": "handoff: {senders: all}\n",
    "decode": "router: {decode: least_loaded}\n",
    "stripes": POOL[:-2] + ", fetch_stripes: 1}\n",
}


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults_are_what_runs_without_the_keys(key: str, tmp_path: Path, capsys: Capture) -> None:
    text = SESSIONS if key == "stripes" else MLA
    usual = text + POOL if key == "stripes" else text
    assert digest(tmp_path, capsys, text + DEFAULTS[key]) == digest(tmp_path, capsys, usual)


def test_cold_share_of_zero_is_the_same_load(tmp_path: Path, capsys: Capture) -> None:
    cold = SESSIONS.replace(
        "  requests: 60",
        "  cold: {share: 0, prompt: {kind: constant, tokens: 9}}\n  requests: 60",
    )
    answers = [simulated(tmp_path, capsys, text) for text in (SESSIONS, cold)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("senders", ["first", "rotate"])
@pytest.mark.parametrize("mode", ["whole_prompt", "layer_wise"])
def test_one_sender_moves_the_same_bytes(
    senders: str, mode: str, tmp_path: Path, capsys: Capture
) -> None:
    keys = (f"handoff: {{senders: {who}, mode: {mode}}}\n" for who in ("all", senders))
    usual, skewed = (simulated(tmp_path, capsys, MLA + key) for key in keys)
    assert skewed["fleet"]["handoff"]["senders"] == senders
    assert skewed["design"]["transfer_bytes"] == usual["design"]["transfer_bytes"] > 0
    assert skewed["design"]["log_digest"] != usual["design"]["log_digest"]
    wire = [answer["design"]["ttft_split_mean"]["wire_ns"] for answer in (usual, skewed)]
    assert wire[0] < wire[1]


def test_one_sender_always_has_the_busiest_nic(tmp_path: Path, capsys: Capture) -> None:
    """Ranks that take turns spread over time what a fixed one sends alone."""
    busiest = {}
    for senders in ("all", "first", "rotate"):
        answer = simulated(tmp_path, capsys, f"{MLA}handoff: {{senders: {senders}}}\n")
        busiest[senders] = answer["design"]["busiest_links"][0]["carried_bytes"]
    assert busiest["all"] < busiest["first"]
    assert busiest["rotate"] < busiest["first"]


@pytest.mark.parametrize("policy", ["round_robin", "random", "topology_aware"])
def test_receivers_are_chosen_as_asked(policy: str, tmp_path: Path, capsys: Capture) -> None:
    text = f"{APART}router: {{decode: {policy}}}\n"
    answer = simulated(tmp_path, capsys, text)
    assert answer["fleet"]["decode_routing"] == policy
    assert answer["design"]["counts"]["finished"] == 60
    assert answer == simulated(tmp_path, capsys, text)


def test_plan_chooses_receivers_by_each_topology(tmp_path: Path, capsys: Capture) -> None:
    text = f"{APART}router: {{decode: topology_aware}}\n"
    ran = run(capsys, "plan", written(tmp_path, text), "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    answer = json.loads(ran.out)
    assert answer["plan"]["decode_routing"] == "topology_aware"
    assert all(design["counts"]["finished"] == 60 for design in answer["designs"])
    assert answer["aggregated"]["counts"]["finished"] == 60


def test_fetches_in_stripes_find_as_much(tmp_path: Path, capsys: Capture) -> None:
    text = SESSIONS.replace("tp: 2}", "tp: 2, enable_prefix_caching: false}")
    keys = (POOL, POOL[:-2] + ", fetch_stripes: 4}\n")
    answers = [simulated(tmp_path, capsys, text + key) for key in keys]
    found = [answer["design"]["kv_pool"] for answer in answers]
    assert min(pool["remote_bytes"] for pool in found) > 0
    assert found[0]["hbm_tokens"] == found[1]["hbm_tokens"] == 0
    assert answers[1]["fleet"]["kv_pool"]["fetch_stripes"] == 4
    assert answers[0]["design"]["log_digest"] != answers[1]["design"]["log_digest"]


def test_bursts_and_cold_prompts_are_taken(tmp_path: Path, capsys: Capture) -> None:
    text = SESSIONS.replace("{kind: poisson, rate: 20 /s}", "{kind: bursts, size: 20, period: 2 s}")
    text = text.replace("  requests: 60", "  cold: {share: 0.25}\n  requests: 60")
    answer = simulated(tmp_path, capsys, text)
    assert answer["workload"]["name"] == (
        "bursts of 20 every 2 s, 60 requests, 0.25 of the sessions cold, seed 0"
    )
    assert answer["design"]["counts"]["finished"] == 60


def test_show_prints_the_keys_and_can_be_run(tmp_path: Path, capsys: Capture) -> None:
    text = SESSIONS.replace("  requests: 60", "  cold: {share: 0.25}\n  requests: 60") + POOL
    path = written(tmp_path, text)
    shown = run(capsys, "simulate", path, "--show").out
    for line in (
        'senders: "all"  # default', 'decode: "least_loaded"  # default',
        "fetch_stripes: 1  # default", f"share: 0.25  # {path}",
    ):  # fmt: skip
        assert line in shown
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    twice = [run(capsys, "simulate", str(p), "--format", "json").out for p in (path, again)]
    assert twice[0] == twice[1]


REFUSED = {
    "unknown sender": ("handoff: {senders: last}", ": handoff.senders: ", "rotate"),
    "unknown receiver": ("router: {decode: nearest}", ": router.decode: ", "topology_aware"),
    "no stripe": (POOL.strip()[:-1] + ", fetch_stripes: 0}", "kv_pool.fetch_stripes: ", "1 or"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistake_is_told_with_its_place(case: str, tmp_path: Path, capsys: Capture) -> None:
    section, place, hint = REFUSED[case]
    check_refused(tmp_path, capsys, f"{APART}{section}\n", place, hint)


WORKLOADS = {
    "all cold and more": ("cold: {share: 1.5}", ":18: workload.cold.share: ", "1"),
    "no share": ("cold: {prompt: {kind: constant, tokens: 9}}", "workload.cold.share", "Add"),
    "cold prompt of nothing": (
        "cold: {share: 0.1, prompt: {kind: constant, tokens: 0}}", "cold.prompt.tokens: ", "1 or",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WORKLOADS)
def test_mistake_in_the_workload_is_told_with_its_place(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    section, place, hint = WORKLOADS[case]
    text = APART.replace("  requests: 60", f"  {section}\n  requests: 60")
    check_refused(tmp_path, capsys, text, place, hint)


@pytest.mark.parametrize(
    ("arrivals", "place", "hint"),
    [
        ("{kind: bursts, size: 0, period: 1 s}", "workload.arrivals.size: ", "1 or more"),
        ("{kind: bursts, size: 5}", "workload.arrivals.period: ", "Add the key"),
        ("{kind: bursts, size: 5, period: 0 s}", "workload.arrivals.period: ", "above 0"),
        ("{kind: bursts, size: 99999, period: 1 ns}", "workload.arrivals.period: ", "1e+09"),
    ],
)
def test_bursts_that_cannot_be_are_refused(
    arrivals: str, place: str, hint: str, tmp_path: Path, capsys: Capture
) -> None:
    text = APART.replace("{kind: poisson, rate: 20 /s}", arrivals)
    check_refused(tmp_path, capsys, text, place, hint)


def check_refused(folder: Path, capsys: Capture, text: str, place: str, hint: str) -> None:
    ran = run(capsys, "simulate", written(folder, text))
    assert (ran.code, ran.out) == (2, "")
    assert place in ran.err
    assert hint in ran.err
    assert len(ran.err.splitlines()) == 1
