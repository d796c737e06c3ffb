"""Why candidates were not looked at any further, and how many: nothing is dropped in silence."""

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a candidate was left; in order of the stages, each with what it says to people."""

    NOT_TRIED = "a split between those tried of a fleet of many workers"
    OTHER_RATIO = "not one of the ratios asked for"
    NOT_WHOLE_SERVERS = "GPUs do not fill servers of 8"
    CANNOT_BE_LAID_OUT = "the model or the workers cannot be divided so"
    DOES_NOT_FIT = "weights and one context do not fit in the memory of a worker"
    FABRIC_CANNOT_BE_BUILT = "the fabric cannot be built for so many GPUs"
    TOO_LONG = "more requests than may miss are longer than a worker holds"
    TTFT_TOO_LONG_ALONE = "more requests than may miss exceed the TTFT target even alone"
    TPOT_TOO_LONG_ALONE = "more requests than may miss exceed the TPOT target even alone"
    PREFILL_CAPACITY = "too few GPUs to compute the prompts in time"
    DECODE_CAPACITY = "too few GPUs to compute the answers in time"
    KV_CAPACITY = "too little KV memory for the requests that must decode at once"
    TOTAL_CAPACITY = "too few GPUs to compute prompts and answers in time"
    TOO_DEAR = "dearer than the limit above the cheapest design that meets the targets"
    MISSES_IDEALLY = "misses the targets by more than 5 % even over an ideal network"
    CAN_DEADLOCK = "the fabric can deadlock under priority flow control"
    NO_GAIN = "a dearer fabric for workers that an ideal network would speed up by less than 5 %"
    MISSES = "misses the targets in the simulation"

    @property
    def key(self) -> str:
        """Return the name for programs."""
        return self.name.lower()

    @property
    def stage(self) -> str:
        """Return the stage of the search that it belongs to."""
        return _STAGES[self]


_STAGES = {
    reason: stage
    for stage, reasons in {
        "construction": tuple(Reason)[:6],
        "bound": tuple(Reason)[6:13],
        "cost": (Reason.TOO_DEAR, Reason.NO_GAIN),
        "simulation": (Reason.MISSES_IDEALLY, Reason.CAN_DEADLOCK, Reason.MISSES),
    }.items()
    for reason in reasons
}


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many designs one reason took out, and the first of them."""

    reason: Reason
    count: int
    example: str


class PruneLog:
    """Counts designs by reason."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: dict[Reason, int] = {}
        self._examples: dict[Reason, str] = {}

    def add(self, reason: Reason, count: int, example: str) -> None:
        """Count designs that a reason takes out; the first example is kept."""
        if count:
            self._counts[reason] = self._counts.get(reason, 0) + count
            self._examples.setdefault(reason, example)

    def rows(self) -> tuple[Pruned, ...]:
        """Return the counts in the order of the stages."""
        return tuple(
            Pruned(reason, self._counts[reason], self._examples[reason])
            for reason in Reason
            if reason in self._counts
        )
