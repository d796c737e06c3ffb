"""The files of one fabric: the same rows in CSV and workbook, the same bytes every time."""

import csv
import io
import re
import zipfile

import pytest

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.export.wiring_files import fabric_files
from kvfabric.fabric.build import build_topology
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.rack_rules import RackRules
from kvfabric.plan.wiring import wire

GBIT = 10**9


def files(
    kind: str = "zcube", label: str = "", rule: CableRule = CableRule.PLANNED
) -> dict[str, str | bytes]:
    topology = build_topology(kind, 64, nic_rate_bps=400 * GBIT)
    wiring = wire(topology, RackRules(), rule)
    bill = bill_of_materials(topology, PRICE_BOOK, wiring.cables)
    return fabric_files(wiring, bill, label=label)


def rows_of(content: str | bytes) -> list[dict[str, str]]:
    assert isinstance(content, str)
    return list(csv.DictReader(io.StringIO(content)))


def sheets_of(content: str | bytes) -> dict[str, str]:
    """Return the XML of each sheet of a workbook by its name."""
    assert isinstance(content, bytes)
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        names = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
        return {
            name: book.read(f"xl/worksheets/sheet{number}.xml").decode()
            for number, name in enumerate(names, start=1)
        }


def test_names_begin_with_the_label() -> None:
    assert list(files()) == ["bom.csv", "wiring.csv", "wiring.xlsx"]
    assert list(files(label="zcube, 2 tiers/a")) == [
        "zcube-2-tiers-a-bom.csv",
        "zcube-2-tiers-a-wiring.csv",
        "zcube-2-tiers-a-wiring.xlsx",
    ]


@pytest.mark.parametrize("rule", CableRule)
def test_parts_and_wiring_agree(rule: CableRule) -> None:
    written = files("clos", rule=rule)
    parts, cables = rows_of(written["bom.csv"]), rows_of(written["wiring.csv"])
    assert len(cables) == 64
    modules = sum(2 for cable in cables if cable["part"].startswith("optic"))
    assert modules == sum(int(part["count"]) for part in parts if part["category"] == "optic")
    copper = sum(cable["part"].startswith("dac") for cable in cables)
    assert copper == sum(int(part["count"]) for part in parts if part["category"] == "copper")


def test_the_last_row_of_the_parts_is_their_sum() -> None:
    *parts, total = rows_of(files()["bom.csv"])
    assert total["category"] == "total"
    for column in ("low_usd", "typical_usd", "high_usd"):
        assert float(total[column]) == sum(float(part[column]) for part in parts)
    for part in parts:
        assert float(part["typical_usd"]) == int(part["count"]) * float(part["unit_typical_usd"])


def test_a_row_says_where_both_ends_are() -> None:
    first = rows_of(files()["wiring.csv"])[0]
    assert first == {
        "cable": "0",
        "label": "01-02 U1 NIC 1 port 1 - 01-01 U1 1/1",
        "part": "optic-200g-sr",
        "rate_gbit_s": "200.0",
        "length_m": "1.7",
        "order_m": "2.0",
        "a_rack": "01-02",
        "a_unit": "1",
        "a_device": "server 0",
        "a_port": "NIC 1 port 1",
        "a_breakout": "",
        "b_rack": "01-01",
        "b_unit": "1",
        "b_device": "multi-rail leaf 0",
        "b_port": "1/1",
        "b_breakout": "1 of 4",
    }


def test_the_workbook_has_the_same_rows_with_frozen_headers_and_filters() -> None:
    written = files()
    sheets = sheets_of(written["wiring.xlsx"])
    assert list(sheets) == ["parts", "wiring", "racks", "assumptions"]
    for name in ("parts", "wiring"):
        csv_rows = rows_of(written["bom.csv" if name == "parts" else "wiring.csv"])
        assert sheets[name].count("<row ") == len(csv_rows) + 1
    assert sheets["racks"].count("<row ") == 8 + 2 + 1  # servers, switches, header
    for sheet in sheets.values():
        assert 'state="frozen"' in sheet
        assert "<autoFilter" in sheet
        assert "<cols>" in sheet


def test_ports_are_text_and_prices_are_numbers() -> None:
    content = files()["wiring.xlsx"]
    assert isinstance(content, bytes)
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        strings = book.read("xl/sharedStrings.xml").decode()
        parts = book.read("xl/worksheets/sheet1.xml").decode()
    assert "<t>1/1</t>" in strings
    assert re.search(r'<c r="G2" s="\d+"><v>', parts)  # typical price of the first part


@pytest.mark.parametrize("kind", ["zcube", "dragonfly"])
def test_the_same_fabric_gives_the_same_bytes(kind: str) -> None:
    assert files(kind) == files(kind)
