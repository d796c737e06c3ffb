"""Flow engines chosen in a scenario: what a plan and a simulation tell, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]
# one decode worker receives from all: their NICs are paused
BUSY = TINY.replace("{prefill: 20, decode: 12, tp: 1}", "{prefill: 31, decode: 1, tp: 1}").replace(
    "kinds: [clos, roft, zcube]", "kinds: [clos, zcube]\n  load_balancing: [ecmp]"
)
BUSY = BUSY.replace("rate: 20 /s", "rate: 200 /s")


def scenario(tmp_path: Path, text: str, engine: str, more: str = "") -> str:
    path = tmp_path / f"{engine}.yaml"
    path.write_text(text.replace("fabric:\n", f"fabric:\n  engine: {engine}\n{more}"))
    return str(path)


def plan(tmp_path: Path, capsys: Capture, engine: str, more: str = "") -> list[dict[str, Any]]:
    path = scenario(tmp_path, BUSY, engine, more)
    ran = run(capsys, "plan", path, "--jobs", "1", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    answer = json.loads(ran.out)
    assert answer["plan"]["flow_engine"] == engine
    designs: list[dict[str, Any]] = answer["designs"]
    return designs


def test_every_engine_runs_a_plan_and_those_with_pauses_tell_them(
    tmp_path: Path, capsys: Capture
) -> None:
    """Many hand-offs to one NIC: it is the bottleneck, so that all engines agree on the mean."""
    by_engine = {name: plan(tmp_path, capsys, name) for name in ("max-min", "pfc", "pfc-stepped")}
    for design in by_engine["max-min"]:
        assert design["back_pressure"] is None
    for name in ("pfc", "pfc-stepped"):
        for design, fair in zip(by_engine[name], by_engine["max-min"], strict=True):
            assert design["back_pressure"]["paused_ns"] > 0
            assert design["back_pressure"]["worst_queue_bytes"] > 0
            assert design["num_flows"] == fair["num_flows"]
            mean_ns = fair["ttft"]["mean_ns"]
            assert design["ttft"]["mean_ns"] == pytest.approx(mean_ns, rel=0.1)


def test_the_text_of_both_commands_tells_pauses(tmp_path: Path, capsys: Capture) -> None:
    path = scenario(tmp_path, BUSY, "pfc-stepped", "  pfc: {time_scale: 4}\n")
    planned = run(capsys, "plan", path, "--jobs", "1")
    assert "Back-pressure (flow engine pfc-stepped)" in planned.out
    assert "  clos ecmp(4 qp): ports paused for" in planned.out
    simulated = run(capsys, "simulate", path)
    assert "Back-pressure (pfc-stepped): ports paused for" in simulated.out
    for ran in (planned, simulated):
        assert (ran.code, ran.err) == (0, "")
        assert "max-min fair flows" not in ran.out
        assert "end-to-end rate" in ran.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("  pfc: {xoff: 100 kB}\n", "fabric.pfc.xoff: xoff_bytes is 100000"),
        ("  pfc: {xon: 1 kB}\n", "fabric.pfc.xon: xon_bytes is 1000"),
        ("  pfc: {time_scale: 0}\n", "fabric.pfc.time_scale: read 0"),
        ("  pfc: {xof: 1 MB}\n", "Did you mean 'xoff'?"),
        ("  load_balancing: [spray]\n", "fabric.load_balancing: spray with the flow engine pfc"),
    ],
)
def test_settings_that_cannot_be_are_told_by_key(
    tmp_path: Path, capsys: Capture, more: str, told: str
) -> None:
    path = scenario(tmp_path, TINY, "pfc", more)
    ran = run(capsys, "plan", path)
    assert ran.code == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_an_unknown_engine_is_told(tmp_path: Path, capsys: Capture) -> None:
    ran = run(capsys, "plan", scenario(tmp_path, TINY, "dcqcn"))
    assert ran.code == 2
    assert "fabric.engine" in ran.err
    assert "'max-min', 'pfc' or 'pfc-stepped'" in ran.err
