"""Max-min fair flow times: exact answers of small instances, and SimGrid's of 10,000 flows."""

from fractions import Fraction
from typing import Final

import numpy as np

from kvfabric.fabric.engines.maxmin import solve_flows
from kvfabric.plan.validation.comparison import (
    Comparison,
    Errors,
    Figure,
    Limit,
    Record,
    Role,
)
from kvfabric.plan.validation.max_min_case import CAPACITY_BPS, EXACT_NS, FLOWS
from kvfabric.plan.validation.reference import ReferenceData

Flow = tuple[tuple[int, ...], int, int]
"""(channels, start in ns, bytes)."""

SECOND: Final = 10**9
LINK_BPS: Final = 8 * 10**9  # 1 byte per ns
CLOSED_FORMS: Final[tuple[tuple[str, int, tuple[Flow, ...], tuple[Fraction, ...]], ...]] = (
    ("one flow", 1, (((0,), 5, 1_000),), (Fraction(1_005),)),
    ("four share a link", 1, tuple(((0,), 0, 1_000) for _ in range(4)), (Fraction(4_000),) * 4),
    # Until 300 alone, then half each: 700 left at one half end at 1,700; then 300 are left alone.
    (
        "one joins another",
        1,
        (((0,), 0, 1_000), ((0,), 300, 1_000)),
        (Fraction(1_700), Fraction(2_000)),
    ),
    # A flow over two links and one on each: all at one half, all end at 2,000.
    (
        "parking lot",
        2,
        (((0, 1), 0, 1_000), ((0,), 0, 1_000), ((1,), 0, 1_000)),
        (Fraction(2_000),) * 3,
    ),
    # Three share link 0, so the one that goes on over link 1 leaves two thirds of that to the last:
    # 3 x 1,000 end together at 3,000; the last ends at 1,500.
    (
        "left over",
        2,
        (((0,), 0, 1_000), ((0,), 0, 1_000), ((0, 1), 0, 1_000), ((1,), 0, 1_000)),
        (Fraction(3_000), Fraction(3_000), Fraction(3_000), Fraction(1_500)),
    ),
    # Sizes 1 to 4 on one link end as in processor sharing: 4, 7, 9, 10.
    (
        "unequal sizes",
        1,
        tuple(((0,), 0, 1_000 * size) for size in (1, 2, 3, 4)),
        (Fraction(4_000), Fraction(7_000), Fraction(9_000), Fraction(10_000)),
    ),
)
"""(name, links of 1 byte/ns, flows, when each ends in ns)."""


def finish_ns(capacity_bps: list[int], flows: tuple[Flow, ...]) -> list[float]:
    """Return when the engine ends each flow, not rounded to whole ns."""
    found = solve_flows(
        np.array(capacity_bps, np.float64),
        np.cumsum([0, *(len(path) for path, _, _ in flows)]),
        np.array([channel for path, _, _ in flows for channel in path]),
        np.array([start_ns / SECOND for _, start_ns, _ in flows]),
        np.array([num_bytes for _, _, num_bytes in flows]),
    )
    return [float(finish_s) * SECOND for finish_s in found]


def _closed_figures() -> list[Figure]:
    return [
        Figure(f"{name}, flow {flow}, ns", float(exact), ours)
        for name, num_links, flows, answers in CLOSED_FORMS
        for flow, (exact, ours) in enumerate(
            zip(answers, finish_ns([LINK_BPS] * num_links, flows), strict=True)
        )
    ]


def _exact_figures() -> list[Figure]:
    ours = finish_ns(list(CAPACITY_BPS), FLOWS)
    return [
        Figure(f"flow {flow}, ns", numerator / denominator, found)
        for flow, ((numerator, denominator), found) in enumerate(zip(EXACT_NS, ours, strict=True))
    ]


def _simgrid_figures(reference: ReferenceData) -> list[Figure]:
    flows = reference.timed_flows()
    found = solve_flows(
        flows.capacity_bps, flows.path_start, flows.path_channels, flows.start_s, flows.size_bytes
    )
    took_s, simgrid_s = found - flows.start_s, flows.finish_s - flows.start_s
    return [
        Figure(f"flow {flow}, s", said, ours)
        for flow, (said, ours) in enumerate(zip(simgrid_s.tolist(), took_s.tolist(), strict=True))
    ]


COMPARISONS: Final = (
    Comparison(
        part="max-min",
        what="closed forms: sharing, joining, parking lot",
        source="arithmetic",
        role=Role.LAW,
        limit=Limit(1e-12, 1e-11),
        recompute=_closed_figures,
    ),
    Comparison(
        part="max-min",
        what="30 flows on 12 links, solved in fractions",
        source="progressive filling in rational arithmetic",
        role=Role.LAW,
        limit=Limit(1e-12, 1e-11),
        recompute=_exact_figures,
    ),
    Comparison(
        part="max-min",
        what="flow completion times, 10,000 flows, 1,024 hosts",
        source="SimGrid 3.32",
        role=Role.HELD_OUT,
        limit=Limit(1e-13, 1e-11),
        recompute_from=_simgrid_figures,
        needs=("fabric/maxmin",),
        record=Record("2026-11-30", Errors(10_000, 3.918e-14, -2.070e-12, 2.072e-12)),
    ),
)
