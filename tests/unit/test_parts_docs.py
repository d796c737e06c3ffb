"""Figures about prices that pages state are those the package gives."""

import re
from functools import cache
from pathlib import Path

import pytest

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.fabric.build import build_topology
from kvfabric.plan.bom import BillOfMaterials, bill_of_materials
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.price_sensitivity import price_difference
from kvfabric.plan.wiring import cables_by_rule

DOCS = Path(__file__).parents[2] / "docs"


@cache
def bill(kind: str, rule: CableRule = CableRule.PLANNED) -> BillOfMaterials:
    topology = build_topology(kind, 1024, nic_rate_bps=400 * 10**9)
    return bill_of_materials(topology, PRICE_BOOK, cables_by_rule(topology, rule))


def rows(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table whose first heading is ``title``."""
    lines = (DOCS / page).read_text("utf-8").split(f"| {title} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.split("\n")[2:]]


def usd(text: str) -> float:
    return float(text.replace("$", "").replace(",", ""))


@pytest.mark.parametrize("cells", rows("reference/prices.md", "first - second"), ids=lambda c: c[0])
def test_differences_of_the_reference(cells: list[str]) -> None:
    first, second = cells[0].split(" - ")
    difference = price_difference(bill(first), bill(second))
    amounts = difference.range
    stated = [usd(cell) for cell in cells[1:4]]
    found = [amounts.low_usd, amounts.typical_usd, amounts.high_usd]
    assert stated == [round(amount, -3) for amount in found]
    assert cells[4] == ("yes" if difference.is_settled else "no")
    assert cells[5].strip("`") == difference.swings[0].key
    turning = {key: f"${at:,.0f}" for key, at in difference.turning_prices()}
    assert dict(re.findall(r"`(\w+)` \w+ (\$[\d,]+)", cells[6])) == turning


@pytest.mark.parametrize("cells", rows("how-to/parts-and-wiring.md", "cables"), ids=lambda c: c[0])
def test_totals_by_rule_of_the_guide(cells: list[str]) -> None:
    rule = CableRule(cells[0])
    totals = [bill(kind, rule).cost().typical_usd for kind in ("roft", "zcube")]
    stated = [usd(cell) for cell in cells[1:]]
    assert stated == [round(amount, -3) for amount in (*totals, totals[1] - totals[0])]
