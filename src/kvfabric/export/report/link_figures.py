"""What every cable of a fabric went through in one run, and which have failed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvfabric.fabric.failures import failed_links
from kvfabric.fabric.graph import FloatArray, Scope, Topology
from kvfabric.plan.compare import DesignResult, FabricFacts
from kvfabric.units import NS_PER_S

BoolArray = npt.NDArray[np.bool_]

HOT_FROM = 0.5
"""Mean share of a channel's capacity from which a link counts as hot: bursts fill it by then."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CableFigures:
    """Figures per cable and direction: ``[num_links, 2]``, from end a to end b first.

    Attributes:
        topology: the fabric before anything failed; its link ids count.
        carried_bytes: on the wire.
        utilization: mean share of the capacity over the run.
        paused_share: share of the run that the sender was held back; None where unknown.
        peak_queue_bytes: the longest queue for it; None where unknown.
        failed: ``[num_links]`` cables without use.
    """

    topology: Topology
    carried_bytes: FloatArray
    utilization: FloatArray
    paused_share: FloatArray | None
    peak_queue_bytes: FloatArray | None
    failed: BoolArray

    def channel_name(self, link: int, direction: int) -> str:
        """Return the name of a channel."""
        return self.topology.channel_name(2 * link + direction)


def whole_of(fabric: FabricFacts) -> Topology:
    """Return the fabric before anything failed."""
    return fabric.topology if fabric.whole is None else fabric.whole


def failed_of(fabric: FabricFacts) -> BoolArray:
    """Return ``[num_links]`` of the whole fabric: which cables are of no use any more."""
    topology = whole_of(fabric)
    if fabric.failures is None:
        return np.zeros(topology.num_links, dtype=np.bool_)
    return failed_links(topology, fabric.failures)


def cable_figures(design: DesignResult) -> CableFigures | None:
    """Return the figures of a design's run; None without a fabric or without its loads."""
    if design.fabric is None or design.run.channels is None:
        return None
    topology, failed = whole_of(design.fabric), failed_of(design.fabric)
    # cables to NICs keep their row when they fail: their port ends at a stub
    rows = np.flatnonzero(~failed | (topology.links.scope == Scope.HOST))
    loads, window_ns = design.run.channels, max(design.summary.window_ns, 1)

    def per_cable(values: FloatArray | None) -> FloatArray:
        found = np.zeros((topology.num_links, 2))
        if values is not None:
            found[rows] = values.reshape(-1, 2)
        return found

    carried = per_cable(loads.carried_bytes)
    capacity_bytes = topology.links.rate_bps / 8 * (window_ns / NS_PER_S)
    knows_pauses = loads.paused_ns is not None
    return CableFigures(
        topology=topology,
        carried_bytes=carried,
        utilization=carried / capacity_bytes[:, None],
        paused_share=per_cable(loads.paused_ns) / window_ns if knows_pauses else None,
        peak_queue_bytes=per_cable(loads.peak_queue_bytes) if knows_pauses else None,
        failed=failed,
    )
