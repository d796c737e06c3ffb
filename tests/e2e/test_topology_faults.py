"""``kvfabric topology`` and ``plan``: failed parts, deadlocks, exit codes."""

import json
from pathlib import Path

import pytest
from command import Ran, run

Capture = pytest.CaptureFixture[str]

DRAGONFLY = ("topology", "--kind", "dragonfly", "--gpus", "72", "--radix", "7")
CLOS = ("topology", "--kind", "clos", "--gpus", "64", "--radix", "16")


def test_a_fabric_without_cycles_exits_with_zero(capsys: Capture) -> None:
    done = run(capsys, *CLOS)
    assert done.code == 0
    assert "no deadlock: no cyclic buffer dependency" in done.out


def test_a_fabric_that_can_deadlock_exits_with_one_and_says_how_not_to(capsys: Capture) -> None:
    done = run(capsys, *DRAGONFLY)
    assert done.code == 1
    assert "deadlock possible" in done.out
    assert "waits for" in done.out
    assert "fix: send with the next priority from hop 2 on" in done.out


def test_the_proposed_priorities_are_enough(capsys: Capture) -> None:
    proposed = json.loads(run(capsys, *DRAGONFLY, "--format", "json").out)["deadlock"]
    hops = ",".join(map(str, proposed["fix_raise_priority_at_hops"]))
    done = run(capsys, *DRAGONFLY, "--priority-hops", hops)
    assert done.code == 0
    assert "no deadlock" in done.out


def test_paths_go_around_a_failed_switch(capsys: Capture) -> None:
    whole = json.loads(run(capsys, *CLOS, "--format", "json").out)
    left = json.loads(run(capsys, *CLOS, "--fail", "switch:spine 0", "--format", "json").out)
    assert left["name"].endswith("without spine 0")
    assert left["bisection_bps"] < whole["bisection_bps"]
    assert left["avg_path_length"] == whole["avg_path_length"]
    assert left["bill_of_materials"] == whole["bill_of_materials"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fail", "switch:leaf 99"), "--fail: failure 'switch:leaf 99'"),
        (("--fail", "leaf 0"), "Write switch:leaf 3"),
        (("--fail", "switch:leaf 0"), "cut off"),
        (("--priority-hops", "1"), "--priority-hops: read '1'"),
        (("--load-balancing", "best"), "'best' is not one of"),
    ],
)
def test_mistakes_are_told_by_their_flag(
    capsys: Capture, options: tuple[str, ...], message: str
) -> None:
    done = run(capsys, *CLOS, *options)
    assert done.code == 2
    assert message in done.err
    assert not done.out


SCENARIO = """\
schema_version: 1
name: nine servers
model: llama-3.1-8b
gpu: h100-sxm-80gb
users: 4
context_tokens: 2000
workers: {{tp: 8, prefill: {prefill}, decode: 4}}
fabric:
  nic_rate: 400 Gbit/s
  kinds: [{kind}]
  load_balancing: [ecmp]
workload:
  kind: generated
  requests: 20
  arrivals: {{kind: poisson, rate: 2 /s}}
  prompt: {{kind: constant, tokens: 1000}}
  output: {{kind: constant, tokens: 10}}
slo: {{ttft: 2 s}}
"""


def plan(capsys: Capture, folder: Path, kind: str, num_prefill: int) -> Ran:
    path = folder / "plan.yaml"
    path.write_text(SCENARIO.format(kind=kind, prefill=num_prefill))
    return run(capsys, "plan", str(path))


def test_a_plan_with_a_fabric_that_can_deadlock_exits_with_one(
    capsys: Capture, tmp_path: Path
) -> None:
    done = plan(capsys, tmp_path, "{kind: dragonfly, radix: 7}", 5)
    assert done.code == 1, done.err
    assert "can deadlock under priority flow control" in done.out


def test_a_plan_over_a_fabric_with_a_failed_spine(capsys: Capture, tmp_path: Path) -> None:
    done = plan(capsys, tmp_path, "{kind: clos, radix: 16, failures: ['switch:spine 0']}", 4)
    assert done.code == 0, done.err
    assert "can deadlock" not in done.out
