"""``kvfabric search`` as people run it: text, JSON, files, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run

from kvfabric.app.scenario_file import parse_scenario

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE = """
schema_version: 1
name: small
model: llama-3.1-8b
gpu: h100-sxm-80gb
workers: {{prefill: 8, decode: 8, tp: 1}}
fabric:
  nic_rate: 400 Gbit/s
  switch: 6.4 Tbit/s
  kinds: [clos, zcube]
workload:
  kind: generated
  arrivals: {{kind: poisson, rate: {rate} /s}}
  prompt: {{kind: uniform, minimum: 500, maximum: 8000}}
  output: {{kind: uniform, minimum: 5, maximum: 200}}
  requests: 80
{slo}
search:
  gpus: {gpus}
  tp: [1, 2]
  attainment: 0.95
{more}
"""
SLO = "slo: {ttft: 2 s, tpot: 15 ms}"


def scenario(
    tmp_path: Path, *, rate: int = 20, slo: str = SLO, gpus: str = "[8, 16]", more: str = ""
) -> Path:
    path = tmp_path / "search.yaml"
    path.write_text(BASE.format(rate=rate, slo=slo, gpus=gpus, more=more), "utf-8")
    return path


def searched(path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    ran = run(capsys, "search", str(path), "--jobs", "1", "--format", "json", "--out", str(out))
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    assert json.loads((out / "search.json").read_text("utf-8")) == found
    return found


MODES = {
    "aggregated": (20, "  modes: [aggregated]"),
    "one-server": (20, "  modes: [disaggregated]"),
    "fabric": (20, "  modes: [disaggregated]\n  kinds: [zcube, clos]\n  nic_rates: [200 Gbit/s]"),
}


@pytest.mark.parametrize("mode", MODES)
def test_winner_runs_in_plan_with_the_same_figures(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rate, more = MODES[mode]
    gpus = "[16]" if mode == "fabric" else "[8, 16]"
    path = scenario(tmp_path, rate=rate, more=more, gpus=gpus, slo="slo: {ttft: 2 s, tpot: 40 ms}")
    found = searched(path, tmp_path / "out", capsys)
    ran = run(capsys, "plan", str(tmp_path / "out" / "winner.yaml"), "--format", "json")
    assert ran.code == 0, ran.err
    planned = json.loads(ran.out)
    winner = found["designs"][found["winner"]]
    same = planned["aggregated"] if mode == "aggregated" else planned["designs"][0]
    assert winner["log_digest"] == same["log_digest"]
    for key in ("counts", "ttft", "tpot", "e2e", "rates", "num_gpus"):
        assert winner[key] == same[key], key
    assert (winner["fabric"] is None) == (mode != "fabric")
    if mode == "fabric":
        assert winner["fabric_cost"]["typical_usd"] == same["cost_typical_usd"]
        assert winner["fabric"]["nic_rate_bps"] == planned["plan"]["nic_rate_bps"] == 200 * 10**9


def test_single_worker_is_a_scenario_for_simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path, rate=2, gpus="[8]", slo="slo: {ttft: 9 s}")
    text = path.read_text("utf-8").replace("tp: [1, 2]", "tp: [8]\n  modes: [aggregated]")
    path.write_text(text, "utf-8")
    found = searched(path, tmp_path / "out", capsys)
    yaml = tmp_path / "out" / "winner.yaml"
    assert yaml.read_text("utf-8").startswith("# kvfabric simulate winner.yaml: 1 x TP8")
    ran = run(capsys, "simulate", str(yaml), "--format", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["design"]["log_digest"] == found["designs"][0]["log_digest"]


def test_text_gives_the_verdict_first_and_is_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path)
    first = run(capsys, "search", str(path), "--jobs", "1", "--out", str(tmp_path / "out"))
    again = run(capsys, "search", str(path), "--jobs", "2")
    assert (first.code, first.err) == (0, "")
    assert first.out == again.out == (tmp_path / "out" / "search.txt").read_text("utf-8")
    lines = first.out.splitlines()
    assert lines[lines.index("Verdict") + 1].startswith("- The cheapest design that meets the")
    for part in ("Designs that meet the targets", "What became of", "Does not model: in the price"):
        assert part in first.out
    assert max(map(len, lines)) <= 150


def test_counts_in_json_sum_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = searched(scenario(tmp_path), tmp_path / "out", capsys)
    counts = found["counts"]
    assert counts["designs"] == counts["met_targets"] + counts["pruned"]
    assert counts["pruned"] == sum(one["count"] for one in found["pruned"])
    assert counts["met_targets"] == len(found["designs"])
    costs = [design["cost"]["typical_usd"] for design in found["designs"]]
    assert costs == sorted(costs)


def test_no_design_is_a_finding_with_the_closest_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path, slo="slo: {ttft: 45 ms}", gpus="[8]")
    ran = run(capsys, "search", str(path), "--jobs", "1", "--out", str(tmp_path / "out"))
    assert ran.code == 1
    assert "- No design meets the targets (TTFT 45 ms for 95 % of the requests)" in ran.out
    assert "Near misses" in ran.out
    assert "% of the requests meet the targets" in ran.out
    assert not (tmp_path / "out" / "winner.yaml").exists()


def test_show_prints_a_complete_search_that_runs_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path)
    shown = run(capsys, "search", str(path), "--show").out
    assert 'kinds: ["clos", "zcube"]  # default' in shown.split("\nsearch:\n")[1]
    assert "gpus: [8, 16]  # " + str(path) in shown
    assert parse_scenario(shown, "shown").search == parse_scenario(shown, "shown").search
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown, "utf-8")
    first, second = (run(capsys, "search", str(p), "--jobs", "1").out for p in (path, copy))
    assert first == second


def test_built_in_scenario_needs_nothing_written(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "search", "--show")
    assert shown.code == 0
    assert "tp: [1, 2, 4, 8]  # default" in shown.out
    assert "gpus: [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128]" in shown.out


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (SLO, "", "slo: no targets, and a search looks for the cheapest design that meets them"),
        ("gpus: [8, 16]", "gpus: {maximum: 4}", "search.gpus: maximum 4 is below minimum 8"),
        ("gpus: [8, 16]", "gpus: [8, 8]", "search.gpus: 8 stands twice"),
        ("gpus: [8, 16]", "gpus: []", "search.gpus: "),
        ("tp: [1, 2]", "tp: [1, 2]\n  ratios: [3:1]", "search.ratios.0: read 181"),
        ("tp: [1, 2]", "tp: [1, 2]\n  kinds: [clo]", "unknown kind of fabric 'clo'"),
        ("tp: [1, 2]", "tp: [1, 2]\n  kinds: [clos, clos]", "two fabrics are called 'clos'"),
        ("tp: [1, 2]", "tp: [1, 2]\n  modes: [both]", "search.modes.0"),
        ("attainment: 0.95", "attainment: 1.5", "search.attainment"),
        ("attainment: 0.95", "attainment: 0.95\n  budget: 3", "unknown key 'budget'"),
        ("gpu: h100-sxm-80gb\n", "", "gpu: the key is missing"),
    ],
)
def test_bad_input_is_told_with_its_place(
    old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario(tmp_path)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    ran = run(capsys, "search", str(path), "--jobs", "1")
    assert ran.code == 2
    assert told in ran.err
    assert str(path) in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("right-size-*.yaml")), ids=lambda p: p.stem)
def test_examples_say_what_may_vary(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "search", str(path), "--show")
    assert (shown.code, shown.err) == (0, "")
    assert f"# {path}" in shown.out.split("\nsearch:\n")[1]


@pytest.mark.slow
def test_example_finds_that_prefill_and_decode_apart_are_cheaper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 8,192 prompt tokens stall answers that may take 15 ms a token."""
    path = EXAMPLES / "right-size-steady-answers.yaml"
    found = searched(path, tmp_path / "out", capsys)
    findings = {one["topic"]: one["finding"] for one in found["findings"]}
    assert findings["winner"] == "disaggregated"
    assert findings["disaggregation"] == "pays"
