"""What a design costs: its GPUs with their share of the servers, and the fabric that joins them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.catalog.gpus import Gpu
from kvfabric.catalog.prices import PriceBook
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.plan.bom import Cost, bill_of_materials
from kvfabric.plan.search.shape import FabricOption
from kvfabric.plan.wiring import cables_by_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCost:
    """The cost of a design in USD; ``fabric`` is None for workers that send nothing."""

    gpus: Cost
    fabric: Cost | None

    @property
    def total(self) -> Cost:
        """Return both together."""
        return self.gpus if self.fabric is None else add(self.gpus, self.fabric)


def add(first: Cost, second: Cost) -> Cost:
    """Return the sum, end by end."""
    return Cost(
        low_usd=first.low_usd + second.low_usd,
        typical_usd=first.typical_usd + second.typical_usd,
        high_usd=first.high_usd + second.high_usd,
    )


def gpu_cost(gpu: Gpu, count: int, book: PriceBook) -> Cost:
    """Return the cost of GPUs with their share of a server.

    Raises:
        ConfigError: the price book has none.
    """
    price = book.price(gpu.name)
    return Cost(
        low_usd=count * price.low_usd,
        typical_usd=count * price.typical_usd,
        high_usd=count * price.high_usd,
    )


class FabricCosts:
    """Prices of the fabrics of a search, by size of the fleet; each is built once."""

    def __init__(self, options: Sequence[FabricOption], book: PriceBook) -> None:
        """Take the fabrics that may be bought, and the prices of their parts."""
        self._book = book
        self._options = options
        self._costs: dict[tuple[int, int], Cost | str] = {}
        self._by_size: dict[int, tuple[tuple[FabricOption, Cost], ...]] = {}

    def buildable(self, num_gpus: int) -> tuple[tuple[FabricOption, Cost], ...]:
        """Return the fabrics that can be built, cheapest first, then in order of the search."""
        if num_gpus not in self._by_size:
            costs = ((option, self._cost(num_gpus, option)) for option in self._options)
            found = [(option, cost) for option, cost in costs if isinstance(cost, Cost)]
            found.sort(key=lambda pair: (pair[1].typical_usd, pair[0].idx))
            self._by_size[num_gpus] = tuple(found)
        return self._by_size[num_gpus]

    def refused(self, num_gpus: int) -> tuple[tuple[FabricOption, str], ...]:
        """Return the fabrics that cannot be built, and why."""
        costs = ((option, self._cost(num_gpus, option)) for option in self._options)
        return tuple((option, cost) for option, cost in costs if isinstance(cost, str))

    def _cost(self, num_gpus: int, option: FabricOption) -> Cost | str:
        """Return the cost, or why the fabric cannot be built; the policy makes no difference."""
        key = (num_gpus, option.parts)
        if key not in self._costs:
            self._costs[key] = _priced(num_gpus, option, self._book)
        return self._costs[key]


def _priced(num_gpus: int, option: FabricOption, book: PriceBook) -> Cost | str:
    choice = option.choice
    try:
        topology = build_topology(
            choice.kind,
            num_gpus,
            nic_rate_bps=option.nic_rate_bps,
            radix=choice.radix,
            switch_capacity_bps=option.switch_capacity_bps,
            num_tiers=choice.num_tiers,
            oversubscription=choice.oversubscription,
            shape=choice.shape,
        )
        return bill_of_materials(topology, book, cables_by_rule(topology, choice.cables)).cost()
    except ConfigError as error:
        return f"{choice.label or choice.kind} for {num_gpus} GPUs: {error.what}"
