"""Counted parts, cables, path lengths and prices of built fabrics against published tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.measures import links_by_kind, path_lengths, switches_by_role
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.plan.validation.topology_tables import (
    DEEPSEEK_TABLE_3,
    HPN_SHAPE,
    HPN_SIZES,
    MOST_SWITCHES,
    SUPERPOD_B200,
    SUPERPOD_H100,
    TABLE_3,
    TABLE_3_DIRECT,
    TABLE_3_NOT_FOLLOWING,
    TABLE_6,
    TABLE_7,
    TABLE_7_DIRECT,
    Counts,
)

GBIT: Final = 10**9
_NIC_BPS: Final = 1200 * GBIT  # splits over one, two and three NIC ports
_MEDIA: Final = ("copper", "fibre")


@lru_cache(maxsize=64)
def _build(kind: str, num_gpus: int, radix: int, tiers: int | None = None, k: int = 0) -> Topology:
    shape = {"k": k} if k else {}
    return build_topology(
        kind, num_gpus, radix=radix, nic_rate_bps=_NIC_BPS, num_tiers=tiers, shape=shape
    )


def counts_of(topology: Topology) -> Counts:
    """Return what Table 7 counts."""
    links = links_by_kind(topology)
    copper, fibre = (links["host"][medium] + links["fabric"][medium] for medium in _MEDIA)
    switches = sum(switches_by_role(topology).values())
    return Counts(switches, copper, fibre, 2 * fibre, topology.ports_per_nic)


def _count_figures() -> list[Figure]:
    figures: list[Figure] = []
    for kind, num_gpus, radix, tiers, counts, _ in TABLE_7:
        found = counts_of(_build(kind, num_gpus, radix, tiers))
        figures += _each(f"{kind} {num_gpus:,} radix {radix}", counts, found)
    for kind, num_gpus, radix, counts, _ in TABLE_7_DIRECT:
        found = counts_of(_build(kind, num_gpus, radix))
        figures += _each(f"{kind} {num_gpus:,} radix {radix}", counts, found)
    return figures


def _each(name: str, published: Counts, found: Counts) -> Iterator[Figure]:
    for field, said, ours in zip(Counts._fields, published, found, strict=True):
        yield Figure(f"{name}, {field.replace('_', ' ')}", said, ours)


def _cable_figures() -> list[Figure]:
    figures = []
    for kind, radix, tiers, by_rate in TABLE_6:
        topology = build_topology(
            kind, 16384, radix=radix, nic_rate_bps=400 * GBIT, num_tiers=tiers
        )
        found = Counter((topology.links.rate_bps // GBIT).tolist())
        figures += [
            Figure(f"{kind} {rate}G", by_rate.get(rate, 0), found[rate])
            for rate in sorted(by_rate.keys() | found.keys())
        ]
    return figures


def _guide_figures() -> list[Figure]:
    figures: list[Figure] = []
    for num_gpus, leaf, spine, cables in SUPERPOD_H100:
        topology = _build("roft", num_gpus, 64)
        roles = switches_by_role(topology)
        found = (roles["leaf"], roles["spine"], topology.num_links - num_gpus)
        figures += _roles(f"H100 {num_gpus:,}", (leaf, spine, cables), found)
    for num_gpus, *switches in SUPERPOD_B200:
        topology = _build("roft", num_gpus, 64)
        roles = switches_by_role(topology)
        ours = [roles.get(role, 0) for role in ("leaf", "spine", "core")]
        figures += _roles(f"B200 {num_gpus:,}", switches, ours)
    for kind, num_gpus, tiers, num_switches, links in DEEPSEEK_TABLE_3:
        topology = _build(kind, num_gpus, 64, tiers)
        ours = [topology.num_switches, topology.num_links - num_gpus]
        figures += _roles(f"{kind} {num_gpus:,}", (num_switches, links), ours)
    for num_gpus, leaves, aggregations in HPN_SIZES:
        topology = build_topology("hpn", num_gpus, nic_rate_bps=400 * GBIT, shape=HPN_SHAPE)
        roles = switches_by_role(topology)
        ours = [roles["leaf"], roles["aggregation"]]
        figures += _roles(f"hpn {num_gpus:,}", (leaves, aggregations), ours)
    return figures


def _roles(name: str, published: Sequence[int], found: Sequence[int]) -> Iterator[Figure]:
    for place, (said, ours) in enumerate(zip(published, found, strict=True), start=1):
        if said or ours:
            yield Figure(f"{name}, count {place}", said, ours)


def _length_figures() -> list[Figure]:
    figures: list[Figure] = []
    for kind, num_gpus, radix, tiers, average, scale_up in TABLE_3:
        topology = _build(kind, num_gpus, radix, tiers)
        figures += _lengths(f"{kind} {num_gpus:,} radix {radix}", topology, average, scale_up)
    for kind, num_gpus, radix, shape, average, starred in TABLE_3_DIRECT:
        topology = _build(kind, num_gpus, radix, None, shape.get("k", 0))
        figures += _lengths(f"{kind} {num_gpus:,} radix {radix}", topology, average, starred)
    return figures


def _not_following_figures() -> list[Figure]:
    figures: list[Figure] = []
    for kind, num_gpus, radix, tiers, average, scale_up in TABLE_3_NOT_FOLLOWING:
        topology = _build(kind, num_gpus, radix, tiers)
        figures += _lengths(f"{kind} {num_gpus:,} radix {radix}", topology, average, scale_up)
    return figures


def _lengths(
    name: str, topology: Topology, average: float | None, scale_up: float | None
) -> Iterator[Figure]:
    found = path_lengths(topology)
    if average is not None:
        assert found.average_links is not None, "all GPUs of the table's row are joined"
        yield Figure(f"{name}, links", average, found.average_links)
    if scale_up is not None:
        assert found.scale_up_average_links is not None
        yield Figure(f"{name}, links, servers joined", scale_up, found.scale_up_average_links)


def _diameter_figures() -> list[Figure]:
    return [
        Figure(
            f"{kind} {num_gpus:,} radix {radix}",
            hops,
            path_lengths(_build(kind, num_gpus, radix, tiers)).switch_hops_max,
        )
        for kind, num_gpus, radix, tiers, hops in MOST_SWITCHES
    ]


def _cost_figures() -> list[Figure]:
    figures = []
    for kind, num_gpus, radix, tiers, _, cost in TABLE_7:
        topology = build_topology(
            kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT, num_tiers=tiers
        )
        typical = bill_of_materials(topology, PRICE_BOOK).cost().typical_usd / 1e6
        figures.append(Figure(f"{kind} {num_gpus:,} radix {radix}, million USD", cost, typical))
    return figures


_ZCUBE: Final = "From ATOP to ZCube, SIGCOMM 2025"

COMPARISONS: Final = (
    Comparison(
        part="fabrics",
        what="switches, copper, fibre, optics, NIC ports, 19 fabrics",
        source=f"{_ZCUBE}, table 7",
        role=Role.HELD_OUT,
        limit=Limit(0, 0),
        recompute=_count_figures,
    ),
    Comparison(
        part="fabrics",
        what="cables by rate, 16,384 GPUs",
        source=f"{_ZCUBE}, table 6",
        role=Role.HELD_OUT,
        limit=Limit(0, 0),
        recompute=_cable_figures,
    ),
    Comparison(
        part="fabrics",
        what="switches and cables of reference designs",
        source="SuperPOD H100, B200; DeepSeek-V3 table 3; HPN",
        role=Role.HELD_OUT,
        limit=Limit(0, 0),
        recompute=_guide_figures,
    ),
    Comparison(
        part="fabrics",
        what="average path length, without and with links in servers",
        source=f"{_ZCUBE}, table 3",
        role=Role.HELD_OUT,
        limit=Limit(1e-6, 2e-6),
        recompute=_length_figures,
    ),
    Comparison(
        part="fabrics",
        what="average path length, 2 HPN rows at odds with table 7",
        source=f"{_ZCUBE}, table 3",
        role=Role.HELD_OUT,
        limit=Limit(0.017, 0.04),
        recompute=_not_following_figures,
    ),
    Comparison(
        part="fabrics",
        what="most switches on a path",
        source=f"{_ZCUBE}; z.ai/blog/zcube",
        role=Role.HELD_OUT,
        limit=Limit(0, 0),
        recompute=_diameter_figures,
    ),
    Comparison(
        part="prices",
        what="network cost at typical prices, 13 fabrics",
        source=f"{_ZCUBE}, fig. 9 (read to 10 %)",
        role=Role.CALIBRATED,
        limit=Limit(0.105, 0.21),
        recompute=_cost_figures,
    ),
)
