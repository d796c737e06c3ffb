"""What a search found."""

from dataclasses import dataclass

from kvfabric.metrics.summary import RunSummary
from kvfabric.plan.search.costs import DesignCost
from kvfabric.plan.search.evaluate import Outcome
from kvfabric.plan.search.pareto import Point
from kvfabric.plan.search.pruned import Pruned
from kvfabric.plan.search.shape import FabricOption, Shape
from kvfabric.plan.search.space import Mode, SearchRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A design that was simulated.

    Attributes:
        shape: its workers.
        option: its fabric; None where nothing is sent.
        cost: of all of it.
        outcome: what the simulation told.
        meets: whether enough requests met the targets.
        ideal_ttft_p99_ns: TTFT p99 of the same workers over an ideal network; None where nothing
            is sent.
        missed_fabrics: cheaper ones that were tried under the same workers and missed the targets.
    """

    shape: Shape
    option: FabricOption | None
    cost: DesignCost
    outcome: Outcome
    meets: bool
    ideal_ttft_p99_ns: int | None = None
    missed_fabrics: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        """Return whether prefill and decode have workers of their own."""
        return Mode.AGGREGATED if self.shape.is_aggregated else Mode.DISAGGREGATED

    @property
    def usd(self) -> float:
        """Return the cost at typical prices."""
        return self.cost.total.typical_usd

    @property
    def summary(self) -> RunSummary:
        """Return the figures of the whole load; only of one that was run."""
        assert self.outcome.summary is not None, "the run was given up"
        return self.outcome.summary

    @property
    def point(self) -> Point:
        """Return cost, TTFT p99 and output tokens per second; only of a whole run."""
        summary = self.summary
        assert summary.ttft.p99_ns is not None, "nothing finished"
        return Point(self.usd, summary.ttft.p99_ns, summary.rates.output_tokens_per_s or 0.0)

    @property
    def network_name(self) -> str:
        """Return fabric, NIC rate and policy in words; ``-`` where nothing is sent."""
        return "-" if self.option is None else self.option.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        request: what was asked.
        found: designs that meet the targets, cheapest first, equal cost by TTFT p99.
        front: those of them that no other beats in cost, TTFT p99 and throughput.
        near_misses: whole runs of designs that miss: the closest of those cheaper than the winner,
            or of all where nothing meets.
        pruned: all other designs, by reason.
        num_designs: every design of the space.
        num_shapes: fleets of the space.
        num_runs: simulations begun.
        num_whole_runs: those that ran the whole load.
        notes: simplifications that entered.
        winner_fabric: the fabric of the winner; the cheapest that could join its GPUs where it
            needs none; None where none can be built.
    """

    request: SearchRequest
    found: tuple[Evaluated, ...]
    front: tuple[Evaluated, ...]
    near_misses: tuple[Evaluated, ...]
    pruned: tuple[Pruned, ...]
    num_designs: int
    num_shapes: int
    num_runs: int
    num_whole_runs: int
    notes: tuple[str, ...]
    winner_fabric: FabricOption | None = None

    @property
    def winner(self) -> Evaluated | None:
        """Return the cheapest design that meets the targets."""
        return self.found[0] if self.found else None

    @property
    def runner_up(self) -> Evaluated | None:
        """Return the next design of another fleet."""
        others = (design for design in self.found if design.shape != self.found[0].shape)
        return next(others, None)

    def cheapest(self, mode: Mode) -> Evaluated | None:
        """Return the cheapest design of one mode that meets the targets."""
        return next((design for design in self.found if design.mode is mode), None)
