"""``kvfabric flows`` as a user runs it: what it prints and writes, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest
from command import Ran, run

Capture = pytest.CaptureFixture[str]
FABRIC = ("--kind", "clos", "--gpus", "64", "--radix", "32", "--tiers", "2")
ENGINES = ("max-min", "pfc", "pfc-stepped")
HEADER = "id,src,dst,start_us,bytes"
MIB = 1 << 20
LINE_US = 16 * MIB * 4160 / 4096 * 8 / 400e3
"""16 MiB in frames of 4,160 bytes for 4,096 at 400 Gbit/s."""


def flows(tmp_path: Path, capsys: Capture, text: str, *more: str) -> Ran:
    path = tmp_path / "flows.csv"
    path.write_text(text)
    return run(capsys, "flows", str(path), *FABRIC, *more)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_tells_when_flows_end(tmp_path: Path, capsys: Capture, engine: str) -> None:
    """Two flows to one NIC take twice the time of a lone one; one within a server none."""
    text = (
        f"{HEADER}\na,0,16,0,{16 * MIB}\nb,8,16,0,{16 * MIB}\nc,24,32,2.5,{16 * MIB}\nd,1,2,0,9\n"
    )
    out = tmp_path / "ends.csv"
    ran = flows(tmp_path, capsys, text, "--engine", engine, "--out", str(out), "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["id"] for row in rows] == ["a", "b", "c", "d"]
    times = [float(row["fct_us"]) for row in rows]
    assert times[:2] == pytest.approx([2 * LINE_US] * 2, rel=0.02)
    assert times[2] == pytest.approx(LINE_US, rel=0.02)
    assert times[3] == 0
    assert rows[3]["slowdown"] == ""
    assert float(rows[2]["end_us"]) == pytest.approx(2.5 + times[2])
    answer = json.loads(ran.out)
    assert answer["num_flows"] == 4
    assert answer["num_within_servers"] == 1
    assert answer["slowdown"]["max"] == pytest.approx(2, rel=0.02)
    assert (answer["back_pressure"] is None) == (engine == "max-min")


@pytest.mark.parametrize("engine", ENGINES)
def test_paths_of_the_file_are_taken(tmp_path: Path, capsys: Capture, engine: str) -> None:
    """Over one cable two flows take twice the time; over two cables each has its own."""
    same = "a,0,16,0,16777216,leaf-0 spine-0 leaf-1\nb,8,24,0,16777216,leaf-0 spine-0 leaf-1\n"
    apart = same.replace("b,8,24,0,16777216,leaf-0 spine-0", "b,8,24,0,16777216,leaf-0 spine-1")
    slowdowns = []
    for rows in (same, apart):
        ran = flows(
            tmp_path, capsys, f"{HEADER},path\n{rows}", "--engine", engine, "--format", "json"
        )
        assert (ran.code, ran.err) == (0, "")
        slowdowns.append(json.loads(ran.out)["slowdown"]["max"])
    assert slowdowns == pytest.approx([2, 1], rel=0.02)


def test_the_text_repeats_and_tells_pauses(tmp_path: Path, capsys: Capture) -> None:
    rows = "\n".join(f"{i},{8 * i},63,0,1000000" for i in range(5))
    first = flows(tmp_path, capsys, f"{HEADER}\n{rows}\n", "--engine", "pfc-stepped")
    assert (first.code, first.err) == (0, "")
    assert "ports paused" in first.out
    assert "worst queue" in first.out
    assert "-> GPU 63 port 0" in first.out
    again = flows(tmp_path, capsys, f"{HEADER}\n{rows}\n", "--engine", "pfc-stepped")
    assert again.out == first.out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("id,src,dst,start_us\n", "lacks bytes"),
        (f"{HEADER}\n", "no flows"),
        (f"{HEADER}\na,0,64,0,1\n", "line 2: dst is '64', no GPU of this fabric"),
        (f"{HEADER}\na,x,1,0,1\n", "line 2: src is 'x'"),
        (f"{HEADER}\na,1,1,0,1\n", "line 2: src and dst are both 1"),
        (f"{HEADER}\na,0,9,-1,1\n", "line 2: start_us is '-1'"),
        (f"{HEADER}\na,0,9,0,0\n", "line 2: bytes is '0'"),
        (f"{HEADER}\na,0,9,0,1e6\n", "line 2: bytes is '1e6'"),
        (f"{HEADER}\n\na,0,9,0,1\na,0,9,0,1\n", "line 4: id 'a' stands on line 3 already"),
        (f"{HEADER}\na,0,9,0\n", "line 2: 4 columns where the header has 5"),
        (f"{HEADER},path\na,0,9,0,1,leaf-9\n", "line 2: the path names 'leaf-9'"),
        (f"{HEADER},path\na,0,16,0,1,leaf-0 leaf-1\n", "line 2: no cable leads from leaf 0"),
        (f"{HEADER},path\na,0,16,0,1,leaf-0 spine-0#99 leaf-1\n", "line 2: no cable #99"),
    ],
)
def test_bad_rows_are_told_by_line_and_nothing_is_written(
    tmp_path: Path, capsys: Capture, text: str, told: str
) -> None:
    out = tmp_path / "ends.csv"
    ran = flows(tmp_path, capsys, text, "--out", str(out))
    assert ran.code == 2
    assert ran.out == ""
    assert told in ran.err
    assert "flows.csv" in ran.err
    assert ran.err.count("\n") == 1
    assert not out.exists()


def test_what_an_engine_cannot_follow_is_refused(tmp_path: Path, capsys: Capture) -> None:
    text = f"{HEADER}\na,0,16,0,1\n"
    ran = flows(tmp_path, capsys, text, "--engine", "pfc", "--load-balancing", "spray")
    assert ran.code == 2
    assert "--load-balancing: spray with the flow engine pfc" in ran.err
    missing = flows(tmp_path, capsys, text, "--out", str(tmp_path / "no" / "ends.csv"))
    assert missing.code == 2
    assert "--out: no folder" in missing.err


def test_a_missing_file_is_told(tmp_path: Path, capsys: Capture) -> None:
    ran = run(capsys, "flows", str(tmp_path / "none.csv"), *FABRIC)
    assert ran.code == 2
    assert "cannot read the file" in ran.err
