"""What a search may vary, and every shape in it with those that nobody can build left out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.plan.request import FabricChoice, PlanRequest
from kvfabric.plan.search.shape import FabricOption, Shape, splits
from kvfabric.plan.worker_layout import SERVER_GPUS
from kvfabric.protocol.ports import StepTimeModel

MAX_SPLITS: Final = 64
MAX_GPU_COUNTS: Final = 32


class Mode(Enum):
    """Whether prefill and decode have workers of their own."""

    DISAGGREGATED = "disaggregated"
    AGGREGATED = "aggregated"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may vary; everything else is as in the plan that the search starts from.

    Attributes:
        num_gpus: sizes of the fleet.
        tps: GPUs of a worker, of a prefill worker where there are others.
        decode_tps: GPUs of a decode worker; empty: as ``tps``.
        ratios: prefill to decode workers; empty: every split, or ``MAX_SPLITS`` evenly spread ones.
        modes: with or without disaggregation.
        fabrics: kinds of fabric with their sizes.
        nic_rates_bps: of the NIC of every GPU.
        switch_capacities_bps: of every switch whose fabric names no radix; None: the default.
        load_balancing: policies.
    """

    num_gpus: tuple[int, ...]
    tps: tuple[int, ...]
    decode_tps: tuple[int, ...] = ()
    ratios: tuple[tuple[int, int], ...] = ()
    modes: tuple[Mode, ...] = (Mode.DISAGGREGATED, Mode.AGGREGATED)
    fabrics: tuple[FabricChoice, ...]
    nic_rates_bps: tuple[int, ...]
    switch_capacities_bps: tuple[int | None, ...] = (None,)
    load_balancing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A search.

    Attributes:
        base: the plan that it starts from: model, GPU, load, targets and all that does not vary.
        space: what varies.
        attainment: share of the requests that must meet the targets.
        cost_limit: the front is explored up to so many times the cost of the cheapest design.
        step_models: step times by GPUs of a worker, where they are not those of the roofline.
    """

    base: PlanRequest
    space: SearchSpace
    attainment: float = 0.99
    cost_limit: float = 1.25
    step_models: Mapping[int, StepTimeModel] = field(default_factory=dict)

    @property
    def num_allowed(self) -> int:
        """Return how many requests may miss the targets."""
        num_requests = len(self.base.workload.requests)
        return num_requests - _least(self.attainment, num_requests)


def _least(share: float, count: int) -> int:
    """Return the fewest of ``count`` whose share is at least ``share``, as ``k / count`` rounds."""
    least = max(0, round(share * count) - 1)
    while least / count < share:
        least += 1
    return least


def check_search(request: SearchRequest) -> None:
    """Refuse a search that can find nothing.

    Raises:
        ConfigError: names the setting and what to write instead.
    """
    slo = request.base.slo
    if slo.ttft_ns is None and slo.tpot_ns is None:
        raise ConfigError(
            "no targets, and a search looks for the cheapest design that meets them",
            where="slo",
            hint="Write ttft, tpot or both, such as slo: {ttft: 2 s, tpot: 50 ms}",
        )
    if request.base.gpu is None:
        raise ConfigError("no GPU is named", where="gpu", hint="Name a GPU of the catalog")


def default_gpu_counts(num_gpus: int) -> tuple[int, ...]:
    """Return whole servers up to twice a fleet, at most ``MAX_GPU_COUNTS`` evenly spaced sizes.

    >>> default_gpu_counts(16)
    (8, 16, 24, 32)
    """
    most = -(-2 * num_gpus // SERVER_GPUS)
    step = -(-most // MAX_GPU_COUNTS)
    return tuple(SERVER_GPUS * servers for servers in range(step, most + step, step))


def fabric_options(space: SearchSpace) -> tuple[FabricOption, ...]:
    """Return every fabric with every policy; a capacity of switches only where no radix is set."""
    hardware = [
        (choice, rate, capacity)
        for choice in space.fabrics
        for rate in space.nic_rates_bps
        for capacity in (space.switch_capacities_bps if choice.radix is None else (None,))
    ]
    return tuple(
        FabricOption(
            choice=choice,
            nic_rate_bps=rate,
            switch_capacity_bps=capacity,
            load_balancing=policy,
            parts=parts,
            idx=parts * len(space.load_balancing) + nth,
        )
        for parts, (choice, rate, capacity) in enumerate(hardware)
        for nth, policy in enumerate(space.load_balancing)
    )


def shapes(space: SearchSpace, prefill_cp: int = 1) -> Iterator[tuple[Shape, bool]]:
    """Yield every shape, and whether it is one of those to try of its fleet."""
    for num_gpus in space.num_gpus:
        for tp in space.tps:
            if Mode.AGGREGATED in space.modes and num_gpus % tp == 0:
                shape = Shape(num_prefill=num_gpus // tp, num_decode=0, tp=tp, decode_tp=tp)
                yield shape, True
            if Mode.DISAGGREGATED in space.modes:
                for decode_tp in space.decode_tps or (tp,):
                    yield from _splits(space, num_gpus, tp, decode_tp, prefill_cp)


def _splits(
    space: SearchSpace, num_gpus: int, tp: int, decode_tp: int, prefill_cp: int
) -> Iterator[tuple[Shape, bool]]:
    found = list(splits(num_gpus, tp, decode_tp, prefill_cp))
    if space.ratios:
        chosen = {i for i, shape in enumerate(found) if _has_ratio(shape, space.ratios)}
    elif len(found) > MAX_SPLITS:
        last = len(found) - 1
        chosen = {i * last // (MAX_SPLITS - 1) for i in range(MAX_SPLITS)}
    else:
        chosen = set(range(len(found)))
    for i, shape in enumerate(found):
        yield shape, i in chosen


def _has_ratio(shape: Shape, ratios: tuple[tuple[int, int], ...]) -> bool:
    return any(shape.num_prefill * d == shape.num_decode * p for p, d in ratios)
