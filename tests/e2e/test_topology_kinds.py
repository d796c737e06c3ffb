"""``kvfabric topology`` for every kind of fabric, as a user runs it."""

import json

import pytest
from command import run

from kvfabric.fabric.build import BUILDERS

Capture = pytest.CaptureFixture[str]

COMMAND = ["topology", "--gpus", "64", "--kind"]


# Shortest paths with one lossless priority; docs/explanation/deadlock.md says why.
CAN_DEADLOCK = ("bcube", "dragonfly", "slim-fly", "jellyfish")


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_kind_prints_its_counts_and_price(kind: str, capsys: Capture) -> None:
    ran = run(capsys, *COMMAND, kind, "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, ran.err) == (int(report["deadlock"]["can_deadlock"]), "")
    assert report["deadlock"]["can_deadlock"] == (kind in CAN_DEADLOCK)
    assert sum(report["switches_by_role"].values()) == report["switches"]
    by_kind = [count for media in report["links_by_kind"].values() for count in media.values()]
    assert sum(by_kind) == report["links"]
    assert report["bisection_bps"] > 0
    assert report["bill_of_materials"]["total"]["typical_usd"] > 0


def test_what_cables_alone_do_not_join_is_shown_as_a_dash(capsys: Capture) -> None:
    shown = run(capsys, *COMMAND, "rail-only").out.splitlines()
    values = dict(line.split(maxsplit=1) for line in shown if line.startswith(("avg", "diam")))
    assert values == {
        "avg_path_length": "-",
        "avg_path_length_with_scale_up": "2.66667",
        "diameter": "-",
        "diameter_with_scale_up": "3",
    }


def test_shape_reaches_the_builder(capsys: Capture) -> None:
    ran = run(capsys, *COMMAND, "multi-plane", "--shape", "planes=4, ports=2", "--format", "json")
    report = json.loads(ran.out)
    assert report["name"].startswith("Multi-plane fat-tree, 4 planes")
    assert (report["nic_ports_per_gpu"], report["port_rate_bps"]) == (2, 200 * 10**9)
