"""The fleets of a search that neither construction nor a bound rules out."""

from dataclasses import dataclass

from kvfabric.errors import CapacityError, ConfigError
from kvfabric.plan.bom import Cost
from kvfabric.plan.engines import Fleet, build_fleet
from kvfabric.plan.request import PlanRequest, check_fleet
from kvfabric.plan.search.bounds import Bounds
from kvfabric.plan.search.costs import DesignCost, FabricCosts, gpu_cost
from kvfabric.plan.search.pruned import PruneLog, Reason
from kvfabric.plan.search.shape import FabricOption, Shape, shape_request
from kvfabric.plan.search.space import SearchRequest, fabric_options, shapes
from kvfabric.plan.worker_layout import SERVER_GPUS
from kvfabric.serving.decode_choice import DecodePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShape:
    """A fleet that may meet the targets.

    Attributes:
        shape: its workers.
        request: its plan, without a fabric of its own.
        fleet: the same, built.
        gpus: cost of the GPUs.
        options: fabrics that can be built, cheapest first; none where none is needed.
        idx: place in the search, which breaks ties.
    """

    shape: Shape
    request: PlanRequest
    fleet: Fleet
    gpus: Cost
    options: tuple[tuple[FabricOption, Cost], ...]
    idx: int

    @property
    def least_usd(self) -> float:
        """Return the cost with the cheapest fabric at typical prices."""
        fabric_usd = self.options[0][1].typical_usd if self.options else 0.0
        return self.gpus.typical_usd + fabric_usd

    @property
    def num_designs(self) -> int:
        """Return the designs that this fleet can be part of."""
        return max(1, len(self.options))

    def cost(self, fabric: Cost | None) -> DesignCost:
        """Return what the fleet costs with a fabric."""
        return DesignCost(gpus=self.gpus, fabric=fabric)


def needs_fabric(shape: Shape, request: PlanRequest) -> bool:
    """Return whether hand-offs leave the server, or their receivers are chosen by a topology."""
    if shape.is_aggregated:
        return False
    return shape.num_gpus > SERVER_GPUS or request.decode_choice is DecodePolicy.TOPOLOGY_AWARE


@dataclass(frozen=True, slots=True)
class Barred:
    """A fleet that a bound rules out, and how far it is from what would be needed."""

    shape: OpenShape
    factor: float


class ShapeFilter:
    """Goes through all fleets once; counts those that are ruled out, and why."""

    def __init__(self, request: SearchRequest, log: PruneLog) -> None:
        """Take the search, and where to count."""
        self._request = request
        self._log = log
        self._bounds = Bounds(request)
        self._options = fabric_options(request.space)
        self._costs = FabricCosts(self._options, request.base.price_book)
        self._fleets: dict[tuple[int, int, bool], Fleet] = {}
        self._refusals: dict[tuple[int, int, bool], tuple[Reason, str]] = {}
        self.num_designs = 0
        self.num_shapes = 0
        self.barred: list[Barred] = []

    def open_shapes(self) -> list[OpenShape]:
        """Return the fleets that are left, cheapest first, then in order of the search."""
        found: list[OpenShape] = []
        prefill_cp = self._request.base.workers.prefill_cp
        for shape, is_tried in shapes(self._request.space, prefill_cp):
            self.num_shapes += 1
            self.num_designs += self._num_designs(shape)
            one = self._opened(shape, is_tried=is_tried)
            if one is not None:
                found.append(one)
        found.sort(key=lambda one: (one.least_usd, one.idx))
        return found

    def cheapest_fabric(self, num_gpus: int) -> FabricOption | None:
        """Return the cheapest fabric that can join so many GPUs, or None."""
        found = self._costs.buildable(num_gpus)
        return found[0][0] if found else None

    def _num_designs(self, shape: Shape) -> int:
        return len(self._options) if needs_fabric(shape, self._request.base) else 1

    def _opened(self, shape: Shape, *, is_tried: bool) -> OpenShape | None:
        if not is_tried:
            has_ratios = bool(self._request.space.ratios)
            self._refuse(shape, Reason.OTHER_RATIO if has_ratios else Reason.NOT_TRIED)
            return None
        if shape.num_gpus % SERVER_GPUS:
            self._refuse(shape, Reason.NOT_WHOLE_SERVERS)
            return None
        request = shape_request(self._request.base, shape, self._request.step_models)
        fleet = self._fleet(shape, request)
        return None if fleet is None else self._bounded(shape, request, fleet)

    def _refuse(self, shape: Shape, reason: Reason, why: str = "") -> None:
        example = f"{shape.name}: {why}" if why else shape.name
        self._log.add(reason, self._num_designs(shape), example)

    def _fleet(self, shape: Shape, request: PlanRequest) -> Fleet | None:
        """Return the fleet of a shape; its limits and step times do not depend on the counts."""
        key = (shape.tp, shape.decode_tp, shape.is_aggregated)
        if key not in self._fleets and key not in self._refusals:
            try:
                self._fleets[key] = build_fleet(request)
            except CapacityError as error:
                self._refusals[key] = Reason.DOES_NOT_FIT, str(error)
            except ConfigError as error:
                self._refusals[key] = Reason.CANNOT_BE_LAID_OUT, error.what
        if key in self._refusals:
            reason, why = self._refusals[key]
            self._refuse(shape, reason, why)
            return None
        return self._fleets[key]

    def _bounded(self, shape: Shape, request: PlanRequest, fleet: Fleet) -> OpenShape | None:
        options: tuple[tuple[FabricOption, Cost], ...] = ()
        if needs_fabric(shape, request):
            options = self._costs.buildable(shape.num_gpus)
            for _, why in self._costs.refused(shape.num_gpus):
                self._log.add(Reason.FABRIC_CANNOT_BE_BUILT, 1, why)
            if not options:
                return None
        assert request.gpu is not None, "checked before"
        one = OpenShape(
            shape=shape,
            request=request,
            fleet=fleet,
            gpus=gpu_cost(request.gpu, shape.num_gpus, request.price_book),
            options=options,
            idx=self.num_shapes,
        )
        excess = self._bounds.excess(shape, fleet)
        if excess is None:
            return one if self._is_laid_out(one) else None
        self.barred.append(Barred(one, excess.factor))
        self._log.add(excess.reason, one.num_designs, f"{shape.name}: {excess.factor:.3g} x")
        return None

    def _is_laid_out(self, one: OpenShape) -> bool:
        """Return whether the workers can be placed; last, as it looks at each of them."""
        try:
            check_fleet(one.request)
        except ConfigError as error:
            is_servers = "fill servers" in error.what
            reason = Reason.NOT_WHOLE_SERVERS if is_servers else Reason.CANNOT_BE_LAID_OUT
            self._log.add(reason, one.num_designs, f"{one.shape.name}: {error.what}")
            return False
        return True
