"""HPN: two planes; a NIC has a port in each, and leaves (ToR) carry one rail of one segment.

A cable between switches has twice the rate of a NIC port and takes two switch ports; the radix
counts ports at the rate of a NIC port. Source: Alibaba HPN (SIGCOMM 2024): ToR of 128 + 8 x 200G
down and 60 x 400G up, 15 segments per pod, 8 of an aggregation switch's 128 x 400G to the cores
(15:1). Counts also in "From ATOP to ZCube", SIGCOMM 2025, Table 7. Not published, and assumed here:
how cores are placed (as in a three-tier Clos, per plane).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.graph import SwitchRole, Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.clos import ClosStyle, wire_clos
from kvfabric.fabric.topologies.clos_shape import ClosShape, allowed_tiers, too_many_gpus
from kvfabric.units import ceil_div

PORTS_PER_NIC = 2
PLANES = 2
TRUNK_PORTS = 2
CORE_SHARE = 16  # one of so many aggregation ports goes to the cores
SHAPE_KEYS = ("gpus_per_leaf", "uplinks", "core_uplinks")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlan:
    """The ports of a leaf, and those of an aggregation switch that go to the cores.

    Attributes:
        gpus_per_leaf: servers of a segment; each has one GPU on the leaf.
        uplinks: cables of a full leaf to the aggregation switches of its plane.
        trunks: cables that an aggregation switch or a core has ports for.
        core_uplinks: of those, cables to the cores, where there are any.
    """

    gpus_per_leaf: int
    uplinks: int
    trunks: int
    core_uplinks: int

    def segments_per_pod(self, num_rails: int, num_tiers: int) -> int:
        """Return how many segments one pod holds: a cable per leaf and aggregation switch."""
        to_cores = self.core_uplinks if num_tiers > 2 else 0
        return max(0, self.trunks - to_cores) // num_rails

    def max_gpus(self, num_rails: int, num_tiers: int) -> int:
        """Return the most GPUs of one pod (two tiers) or of all pods (three)."""
        num_pods = self.trunks if num_tiers > 2 else 1
        segments = self.segments_per_pod(num_rails, num_tiers) * num_pods
        return segments * self.gpus_per_leaf * num_rails


def build_hpn(request: FabricRequest) -> Topology:
    """Build a dual-plane fabric of segments, in one pod or, with cores, in several.

    The shape may say ``gpus_per_leaf`` (default: half the ports), ``uplinks`` of a full leaf
    (default: as many as carry its GPUs, or as it has ports for) and ``core_uplinks`` of an
    aggregation switch (default: one of 16 where one pod is too small).
    """
    if request.oversubscription != 1:
        raise UnsupportedError(
            f"hpn with oversubscription {request.oversubscription}",
            where="fabric.oversubscription",
            hint="Leave it at 1; the shape's uplinks and core_uplinks set it",
        )
    plan = _leaf_plan(request)
    tiers = allowed_tiers(request, (2, 3))
    for num_tiers in tiers:
        if request.num_gpus <= plan.max_gpus(request.gpus_per_server, num_tiers):
            style = ClosStyle(
                kind="hpn",
                title="HPN",
                ports_per_nic=PORTS_PER_NIC,
                trunk_ports=TRUNK_PORTS,
                spine_role=SwitchRole.AGGREGATION,
            )
            return wire_clos(request, _shape_of(request, plan, num_tiers), style)
    largest = max(plan.max_gpus(request.gpus_per_server, num_tiers) for num_tiers in tiers)
    raise too_many_gpus(request, tiers[-1], largest)


def _leaf_plan(request: FabricRequest) -> LeafPlan:
    radix = request.radix
    half = radix // (2 * TRUNK_PORTS)  # trunks that carry as many GPUs as are left room for
    gpus = request.shape_value("gpus_per_leaf", TRUNK_PORTS * half, least=0)
    room = max(0, radix - gpus) // TRUNK_PORTS
    uplinks = request.shape_value("uplinks", min(ceil_div(gpus, TRUNK_PORTS), room), least=0)
    if not gpus or not uplinks or uplinks > room:
        raise ConfigError(
            f"a leaf with {gpus} GPUs and {uplinks} uplinks does not fit {radix} ports; an uplink"
            f" takes {TRUNK_PORTS}",
            where="fabric.shape" if request.shape else "fabric.radix",
            hint=_leaf_hint(radix, gpus, room),
        )
    trunks = radix // TRUNK_PORTS
    core_uplinks = request.shape_value("core_uplinks", max(1, trunks // CORE_SHARE))
    return LeafPlan(gpus_per_leaf=gpus, uplinks=uplinks, trunks=trunks, core_uplinks=core_uplinks)


def _leaf_hint(radix: int, gpus: int, room: int) -> str:
    if radix <= TRUNK_PORTS:
        return "Use switches with more ports"
    if gpus and room:
        return f"Write 1 to {room} uplinks, or fewer GPUs per leaf"
    return f"Write 1 to {radix - TRUNK_PORTS} GPUs per leaf"


def _shape_of(request: FabricRequest, plan: LeafPlan, num_tiers: int) -> ClosShape:
    num_rails = request.gpus_per_server
    segments = ceil_div(request.num_servers, plan.gpus_per_leaf)
    num_pods = 1
    if num_tiers > 2:
        num_pods = max(2, ceil_div(segments, plan.segments_per_pod(num_rails, num_tiers)))
    segments_per_pod = ceil_div(segments, num_pods)
    to_cores = plan.core_uplinks if num_tiers > 2 else 0
    uplinks = _uplinks_of_fullest(request, plan, segments_per_pod * num_pods)
    spines = next(
        count
        for count in _divisors(uplinks)
        if segments_per_pod * num_rails * (uplinks // count) <= plan.trunks - to_cores
    )
    cores = next((n for n in _divisors(to_cores) if num_pods * (to_cores // n) <= plan.trunks), 0)
    return ClosShape(
        num_tiers=num_tiers,
        num_planes=PLANES,
        num_rails=num_rails,
        num_pods=num_pods,
        leaves_per_rail=segments_per_pod,
        spines_per_pod=spines,
        leaf_bundle=uplinks // spines,
        cores_per_spine=cores,
        core_bundle=to_cores // cores if cores else 0,
    )


def _uplinks_of_fullest(request: FabricRequest, plan: LeafPlan, segments: int) -> int:
    """Return the uplinks of every leaf: partly filled leaves need only their share."""
    servers = ceil_div(request.num_servers, segments)
    return min(plan.uplinks, ceil_div(servers * plan.uplinks, plan.gpus_per_leaf))


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)
