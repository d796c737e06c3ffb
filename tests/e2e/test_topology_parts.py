"""``kvfabric topology``: parts, price, racks and the wiring list, as a user runs it."""

import csv
import json
from pathlib import Path

import pytest
from command import run

Capture = pytest.CaptureFixture[str]

ZCUBE = ("topology", "--kind", "zcube", "--gpus", "64")


def test_the_text_names_parts_totals_prices_that_matter_and_racks(capsys: Capture) -> None:
    done = run(capsys, *ZCUBE)
    assert (done.code, done.err) == (0, "")
    for words in (
        "Parts and price (price book public sources 2026-11, 2026-11-30",
        "optic-200g-sr",
        "dac-200g",
        "per GPU; without GPUs and servers. Cables as this kind of fabric was published.",
        "Prices that matter most for the total",
        "Racks: 3 in 1 row(s), of 42 units and 45.0 kW",
        "bound by power",
        "Plugs in switch cages: 16 x dac-200g, 4 to a cage",
    ):
        assert words in done.out
    assert max(map(len, done.out.splitlines())) <= 118


def test_out_writes_parts_wiring_and_what_json_prints(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = run(capsys, *ZCUBE, "--format", "json", "--out", str(out))
    assert done.code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "bom.csv",
        "topology.json",
        "wiring.csv",
        "wiring.xlsx",
    ]
    assert (out / "topology.json").read_text() == done.out
    report = json.loads(done.out)
    with (out / "wiring.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == report["links"]
    assert sum(2 for row in rows if row["part"].startswith("optic")) == report["optics"]
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    run(capsys, *ZCUBE, "--out", str(out))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_wiring_is_of_the_whole_fabric(capsys: Capture, tmp_path: Path) -> None:
    clos = ("topology", "--kind", "clos", "--gpus", "64", "--radix", "16")
    run(capsys, *clos, "--out", str(tmp_path / "whole"))
    run(capsys, *clos, "--fail", "switch:spine 0", "--out", str(tmp_path / "left"))
    for name in ("bom.csv", "wiring.csv", "wiring.xlsx"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "left" / name).read_bytes()


def test_prices_of_a_file_replace_public_ones_and_are_marked(
    capsys: Capture, tmp_path: Path
) -> None:
    book = tmp_path / "quotes.yaml"
    book.write_text("prices:\n  51.2t: {low: 25000, typical: 28000, high: 31000}\n  l40s: 9000\n")
    public = json.loads(run(capsys, *ZCUBE, "--format", "json").out)["bill_of_materials"]
    done = run(capsys, *ZCUBE, "--prices", str(book), "--format", "json")
    own = json.loads(done.out)["bill_of_materials"]
    saved = 2 * (39_300 - 28_000)
    assert public["total"]["typical_usd"] - own["total"]["typical_usd"] == saved
    assert (public["given_prices"], own["given_prices"]) == ([], ["51.2t", "l40s"])
    assert own["price_book"] == "public sources 2026-11, with 2 prices of quotes.yaml"
    text = run(capsys, *ZCUBE, "--prices", str(book)).out
    assert "51.2t *" in text
    assert "* Your price; also given: l40s." in text


def test_sensitivity_is_sorted_and_sums_to_the_range(capsys: Capture) -> None:
    report = json.loads(run(capsys, *ZCUBE, "--format", "json").out)
    total, swings = report["bill_of_materials"]["total"], report["price_sensitivity"]
    sizes = [swing["swing_usd"] for swing in swings]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == total["high_usd"] - total["low_usd"]


def test_cables_by_length_follow_the_racks(capsys: Capture) -> None:
    def copper(*options: str) -> int:
        command = ("topology", "--kind", "roft", "--gpus", "64", "--format", "json", *options)
        report = json.loads(run(capsys, *command).out)
        totals = report["bill_of_materials"]["totals"]
        assert report["racks"]["findings"] == []
        return int(totals["copper"]["count"]) if "copper" in totals else 0

    assert copper() == 0
    assert copper("--cables", "placed") == 64
    assert copper("--cables", "placed", "--rack-power", "12", "--racks-per-row", "4") < 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prices", "none.yaml"), "--prices: cannot read the price book none.yaml"),
        (("--rack-units", "7"), "--server-units: a server of 8 rack units does not fit"),
        (("--rack-power", "9"), "--rack-power: a server of 10,200 W is more than the 9,000 W"),
        (("--cables", "short"), "'short' is not one of"),
        (("--rack-power", "0"), "0.0 is not in the range x>0"),
    ],
)
def test_mistakes_are_told_by_their_flag(
    capsys: Capture, options: tuple[str, ...], message: str
) -> None:
    done = run(capsys, *ZCUBE, *options)
    assert done.code == 2
    assert message in done.err
    assert not done.out


def test_a_folder_that_is_a_file_is_refused(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(capsys, *ZCUBE, "--out", str(tmp_path / "file" / "below"))
    assert done.code == 2
    assert "is a file" in done.err
