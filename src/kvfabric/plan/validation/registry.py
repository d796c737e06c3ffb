"""All comparisons, in the order they are shown, and what runs them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.plan.validation import (
    all_to_all,
    chip_steps,
    closed_loop,
    expert_layers,
    expert_steps,
    handoff,
    kv_bytes,
    kv_capacity,
    latent_layers,
    max_min,
    pfc,
    prefix_bandwidth,
    prefix_cache,
    step_times,
    topologies,
    vllm_runs,
)
from kvfabric.plan.validation.comparison import Comparison, Row, run_comparison
from kvfabric.plan.validation.reference import ReferenceData

COMPARISONS: Final[tuple[Comparison, ...]] = tuple(
    chain.from_iterable(
        module.COMPARISONS
        for module in (
            kv_bytes,
            kv_capacity,
            prefix_cache,
            prefix_bandwidth,
            vllm_runs,
            closed_loop,
            step_times,
            chip_steps,
            expert_steps,
            expert_layers,
            latent_layers,
            handoff,
            max_min,
            pfc,
            all_to_all,
            topologies,
        )
    )
)


def part_names() -> tuple[str, ...]:
    """Return the parts in the order they are shown."""
    return tuple(dict.fromkeys(comparison.part for comparison in COMPARISONS))


def comparisons_of(parts: Iterable[str]) -> tuple[Comparison, ...]:
    """Return the comparisons of these parts; of all for none.

    Raises:
        ConfigError: there is no such part.
    """
    asked = set(parts)
    if unknown := sorted(asked - set(part_names())):
        raise ConfigError(
            f"read {unknown[0]!r}", where="--only", hint=f"Write one of {', '.join(part_names())}"
        )
    return tuple(one for one in COMPARISONS if not asked or one.part in asked)


def run_comparisons(
    comparisons: Iterable[Comparison],
    reference: ReferenceData | None,
    report: Callable[[Comparison], None] | None = None,
) -> Iterator[Row]:
    """Yield the row of each comparison.

    Args:
        comparisons: what to run.
        reference: the folder of reference data, if it is at hand.
        report: is told of each before it runs.
    """
    for comparison in comparisons:
        if report is not None:
            report(comparison)
        yield run_comparison(comparison, reference)
