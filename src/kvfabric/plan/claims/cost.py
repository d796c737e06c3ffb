"""The claims about parts and money, from counted parts of built fabrics."""

from dataclasses import dataclass

import numpy as np

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Scope, Topology
from kvfabric.plan.bom import Cost, bill_of_materials
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.wiring import cables_by_rule

_GBIT = 10**9
NIC_BPS = 400 * _GBIT
TWO_TIER_GPUS, THREE_TIER_GPUS, RADIX = 1_024, 16_384, 128

SIZES: tuple[tuple[int, int], ...] = ((1_024, 32), (4_096, 64), (16_384, 128))
"""GPUs, and 400 Gbit/s ports of a switch, of the published cost table (Table 7 of the paper)."""


BY_RACKS: tuple[tuple[CableRule, str], ...] = (
    (CableRule.PLACED, "copper where it reaches"),
    (CableRule.PLACED_AOC, "copper or else active optical cables"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Counts of one fabric; optical modules in equivalents of 400 Gbit/s.

    Attributes:
        name: of the fabric.
        num_gpus: that it joins.
        switches: of all roles.
        switch_optics: modules in switches, every cable taken as fibre.
        optics: modules at both ends, every cable taken as fibre.
        optics_with_copper: modules where cables within reach of copper are copper, as built.
        cost: of the whole bill of materials.
        cost_without_nics: of switches, optical modules and cables.
    """

    name: str
    num_gpus: int
    switches: int
    switch_optics: float
    optics: float
    optics_with_copper: float
    cost: Cost
    cost_without_nics: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComparison:
    """ZCube beside another fabric of the same GPUs."""

    other: Parts
    zcube: Parts

    def change(self, field: str) -> float:
        """Return the change of a count from the other fabric to ZCube, as a share."""
        before, after = getattr(self.other, field), getattr(self.zcube, field)
        return float(after / before - 1)

    def cost_change(self, at: str, what: str = "cost") -> float:
        """Return the change of a cost with all prices ``low``, ``typical`` or ``high``."""
        before, after = (getattr(getattr(p, what), f"{at}_usd") for p in (self.other, self.zcube))
        return float(after / before - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEvidence:
    """All that the claims about parts and money are judged by.

    Attributes:
        two_tiers: RoFT of two tiers, cables as published.
        two_tiers_by_racks: the same with cables that follow from racks, by the rule in words.
        three_tiers: RoFT of three tiers.
        published_sizes: RoFT, Rail-only and HPN at three sizes.
    """

    two_tiers: CostComparison
    two_tiers_by_racks: tuple[tuple[str, CostComparison], ...]
    three_tiers: CostComparison
    published_sizes: tuple[CostComparison, ...]


def cost_evidence() -> CostEvidence:
    """Build the fabrics and count."""
    return CostEvidence(
        two_tiers=_compare("roft", TWO_TIER_GPUS, RADIX, tiers=2),
        two_tiers_by_racks=tuple(
            (words, _compare("roft", TWO_TIER_GPUS, RADIX, tiers=2, rule=rule))
            for rule, words in BY_RACKS
        ),
        three_tiers=_compare("roft", THREE_TIER_GPUS, RADIX, tiers=3),
        published_sizes=tuple(
            _compare(kind, num_gpus, radix, tiers=3 if kind == "roft" else None)
            for num_gpus, radix in SIZES
            for kind in ("roft", "rail-only", "hpn")
        ),
    )


def _compare(
    kind: str,
    num_gpus: int,
    radix: int,
    *,
    tiers: int | None,
    rule: CableRule = CableRule.PLANNED,
) -> CostComparison:
    """Compare a kind with ZCube; ``radix`` counts 400G ports, HPN and ZCube have twice as many."""
    other_radix = 2 * radix if kind == "hpn" else radix
    other = build_topology(kind, num_gpus, nic_rate_bps=NIC_BPS, radix=other_radix, num_tiers=tiers)
    zcube = build_topology("zcube", num_gpus, nic_rate_bps=NIC_BPS, radix=2 * radix, num_tiers=1)
    return CostComparison(other=parts_of(other, rule), zcube=parts_of(zcube, rule))


def parts_of(topology: Topology, rule: CableRule = CableRule.PLANNED) -> Parts:
    """Count the parts of a built fabric; the rule decides the cables that are paid."""
    links = topology.links
    weight = links.rate_bps / NIC_BPS
    at_switches = np.where(links.scope == Scope.HOST, 1, 2)
    is_fibre = links.medium == Medium.FIBRE
    bom = bill_of_materials(topology, PRICE_BOOK, cables_by_rule(topology, rule))
    whole, nics = bom.cost(), bom.cost("nic")
    return Parts(
        name=topology.name,
        num_gpus=topology.num_gpus,
        switches=len(topology.switches),
        switch_optics=float((weight * at_switches).sum()),
        optics=float((2 * weight).sum()),
        optics_with_copper=float((2 * weight * is_fibre).sum()),
        cost=whole,
        cost_without_nics=Cost(
            low_usd=whole.low_usd - nics.low_usd,
            typical_usd=whole.typical_usd - nics.typical_usd,
            high_usd=whole.high_usd - nics.high_usd,
        ),
    )
