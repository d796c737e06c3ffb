"""Prices and types of cables that a scenario gives, through ``kvfabric plan``."""

import csv
import json
from pathlib import Path

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]

OWN = "prices: {1x400g: {low: 900, typical: 1000, high: 1200}}\n"


def scenario(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text)
    return path


def test_prices_and_cables_of_a_scenario_reach_the_lists(capsys: Capture, tmp_path: Path) -> None:
    kinds = "kinds: [{kind: roft, cables: placed}, roft-as-published]"
    text = TINY.replace("kinds: [clos, roft, zcube]", kinds)
    text = text.replace("roft-as-published", "{kind: roft, label: published}") + OWN
    out = tmp_path / "out"
    done = run(capsys, "plan", str(scenario(tmp_path, text)), "--format", "json", "--out", str(out))
    assert done.code == 0, done.err
    fabrics = json.loads(done.out)["fabrics"]
    placed, published = (fabrics[name]["bill_of_materials"] for name in ("roft", "published"))
    assert placed["cable_rule"] == "placed"
    assert published["cable_rule"] == "planned"
    assert placed["given_prices"] == published["given_prices"] == ["1x400g"]
    for name, bill in (("roft", placed), ("published", published)):
        with (out / f"{name}-bom.csv").open() as file:
            total = list(csv.DictReader(file))[-1]
        assert float(total["typical_usd"]) == bill["total"]["typical_usd"]
    assert "copper" in placed["totals"]
    assert "copper" not in published["totals"]


def test_a_price_book_that_is_not_there_is_told_with_its_key(
    capsys: Capture, tmp_path: Path
) -> None:
    path = scenario(tmp_path, TINY + "prices: none.yaml\n")
    done = run(capsys, "plan", str(path))
    assert done.code == 2
    assert f"{path}: prices: cannot read the price book {tmp_path / 'none.yaml'}" in done.err


def test_shown_scenario_names_the_price_book_by_its_whole_path(
    capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "quotes.yaml").write_text(OWN)
    path = scenario(tmp_path, TINY + "prices: quotes.yaml\n")
    out = tmp_path / "out"
    assert run(capsys, "simulate", str(path), "--out", str(out)).code == 0
    assert f'prices: "{tmp_path / "quotes.yaml"}"' in (out / "scenario.yaml").read_text()
