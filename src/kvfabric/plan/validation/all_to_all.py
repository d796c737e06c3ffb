"""64 MB all-to-all on 64 GPUs against the flow-level column of the ZCube paper."""

from typing import Final

from kvfabric.plan.validation.all_to_all_cases import CASES, all_to_all_ms
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role

DOMAIN: Final = 16
"""Consecutive GPUs whose messages to each other stay off the fabric."""


def _figures() -> list[Figure]:
    return [
        Figure(f"{case.name}, ms", case.published_ms, all_to_all_ms(case, domain=DOMAIN))
        for case in CASES
    ]


COMPARISONS: Final = (
    Comparison(
        part="all-to-all",
        what="64 MB, 64 GPUs, 5 fabrics; assumptions were searched for",
        source="From ATOP to ZCube, SIGCOMM 2025, tables 4 and 5",
        role=Role.CALIBRATED,
        limit=Limit(0.028, 0.07),
        recompute=_figures,
    ),
)
