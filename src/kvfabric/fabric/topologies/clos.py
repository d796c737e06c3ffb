"""Folded Clos fabrics of one, two or three tiers: how many switches, and which cable goes where.

The rail-optimised fat-tree is the same wiring with another assignment of NICs to leaves.
"""

from dataclasses import dataclass

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import (
    Cable,
    IntArray,
    LengthClass,
    LinkTable,
    Medium,
    Scope,
    Switch,
    SwitchRole,
    Topology,
    access_links_of,
    join_blocks,
    link_block,
    number_switches,
)
from kvfabric.fabric.request import FabricRequest
from kvfabric.units import ceil_div

MAX_TIERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosShape:
    """How many switches of each tier, and how many parallel cables between two of them.

    Attributes:
        num_tiers: 1, 2 or 3.
        num_rails: leaf groups; 1 when whole servers hang on one leaf. With fewer groups than GPUs
            per server, neighboring rails share one.
        num_pods: 1 below three tiers.
        leaves_per_rail: leaves of one rail in one pod.
        spines_per_pod: every leaf reaches each of them over ``leaf_bundle`` cables.
        leaf_bundle: parallel cables of one leaf-spine pair.
        cores_per_spine: every spine reaches each of them over ``core_bundle`` cables; spines of
            equal number in all pods share them.
        core_bundle: parallel cables of one spine-core pair.
    """

    num_tiers: int
    num_rails: int = 1
    num_pods: int = 1
    leaves_per_rail: int = 1
    spines_per_pod: int = 0
    leaf_bundle: int = 0
    cores_per_spine: int = 0
    core_bundle: int = 0

    @property
    def leaves_per_pod(self) -> int:
        """Return the leaves of all rails in one pod."""
        return self.leaves_per_rail * self.num_rails

    @property
    def num_leaves(self) -> int:
        """Return the leaves of all pods."""
        return self.num_pods * self.leaves_per_pod

    @property
    def num_spines(self) -> int:
        """Return the spines of all pods."""
        return self.num_pods * self.spines_per_pod

    @property
    def num_cores(self) -> int:
        """Return the cores."""
        return self.spines_per_pod * self.cores_per_spine


def build_clos(request: FabricRequest) -> Topology:
    """Build a folded Clos: consecutive servers share a leaf, in copper reach in the same rack."""
    shape = clos_shape(request, num_rails=1)
    host = Cable(
        rate_bps=request.host_rate_bps(1),
        scope=Scope.HOST,
        medium=Medium.COPPER,
        length=LengthClass.RACK,
    )
    return wire_clos(request, shape, host, kind="clos", title="Clos")


def clos_shape(request: FabricRequest, *, num_rails: int) -> ClosShape:
    """Return the shape with the given number of tiers, or with the fewest that hold the GPUs."""
    tiers = range(1, MAX_TIERS + 1) if request.num_tiers is None else (request.num_tiers,)
    if not set(tiers) <= {1, 2, 3}:
        raise ConfigError(
            f"{request.num_tiers} tiers", where="fabric.num_tiers", hint="Write 1, 2 or 3"
        )
    for num_tiers in tiers:
        if request.num_gpus <= max_gpus(request, num_tiers, num_rails=num_rails):
            return _shape_of(request, num_tiers, num_rails)
    largest = max(max_gpus(request, num_tiers, num_rails=num_rails) for num_tiers in tiers)
    fits = (
        f"The largest that fits is {largest} GPUs"
        if largest
        else "With so few ports no server fits"
    )
    raise ConfigError(
        f"{request.num_gpus} GPUs do not fit {tiers[-1]} tier(s) of switches with "
        f"{request.radix} ports",
        where="fabric",
        hint=f"{fits}; use switches with more ports",
    )


def max_gpus(request: FabricRequest, num_tiers: int, *, num_rails: int) -> int:
    """Return the most GPUs that ``num_tiers`` tiers of the requested switches hold; 0 if none."""
    if num_tiers == 1:
        return request.radix - request.radix % request.gpus_per_server
    rails_per_pod = request.radix if num_tiers == 2 else request.radix // 2
    leaves_per_rail = rails_per_pod // num_rails
    num_pods = 1 if num_tiers == 2 else request.radix
    servers = servers_per_leaf(request, num_rails) * leaves_per_rail * num_pods
    return servers * request.gpus_per_server


def servers_per_leaf(request: FabricRequest, num_rails: int) -> int:
    """Return how many servers one leaf takes when the rest of its ports carries their load up."""
    ports = request.radix
    while ports and ports + _min_uplinks(ports, request.oversubscription) > request.radix:
        ports -= 1
    return ports // (request.gpus_per_server // num_rails)


def _min_uplinks(down_ports: int, oversubscription: float) -> int:
    # the small allowance keeps 6 / 1.5 from asking for a fifth uplink
    return int(-(-(down_ports / oversubscription - 1e-9) // 1))


def _shape_of(request: FabricRequest, num_tiers: int, num_rails: int) -> ClosShape:
    if num_tiers == 1:
        return ClosShape(num_tiers=1)
    blocks = ceil_div(request.num_servers, servers_per_leaf(request, num_rails))
    num_pods = 1
    if num_tiers == MAX_TIERS:
        num_pods = max(2, ceil_div(blocks, request.radix // 2 // num_rails))
    leaves_per_rail = ceil_div(blocks, num_pods)
    servers = ceil_div(request.num_servers, leaves_per_rail * num_pods)
    down_ports = servers * (request.gpus_per_server // num_rails)
    num_leaves = leaves_per_rail * num_rails
    spines, bundle = _spine_layer(request, num_tiers, num_leaves, down_ports)
    cores, core_bundle = (0, 0)
    if num_tiers == MAX_TIERS:
        cores, core_bundle = _core_layer(request.radix, num_pods, num_leaves * bundle)
    return ClosShape(
        num_tiers=num_tiers,
        num_rails=num_rails,
        num_pods=num_pods,
        leaves_per_rail=leaves_per_rail,
        spines_per_pod=spines,
        leaf_bundle=bundle,
        cores_per_spine=cores,
        core_bundle=core_bundle,
    )


def _spine_layer(
    request: FabricRequest, num_tiers: int, num_leaves: int, down_ports: int
) -> tuple[int, int]:
    """Return (spines, parallel cables per leaf-spine pair): the fewest spines with equal bundles.

    Equal bundles are why 24 leaves of 64 ports need 16 spines and not 12.
    """
    spine_ports = request.radix if num_tiers == 2 else request.radix // 2
    uplinks = _min_uplinks(down_ports, request.oversubscription)
    for spines in range(1, uplinks + 1):
        bundle = ceil_div(uplinks, spines)
        leaf_fits = down_ports + spines * bundle <= request.radix
        if leaf_fits and num_leaves * bundle <= spine_ports:
            return spines, bundle
    raise AssertionError("one cable per leaf-spine pair always fits below max_gpus")


def _core_layer(radix: int, num_pods: int, uplinks: int) -> tuple[int, int]:
    """Return (cores per spine, parallel cables): the fewest cores; a spine has up = down ports."""
    for cores in range(1, uplinks + 1):
        bundle = ceil_div(uplinks, cores)
        if num_pods * bundle <= radix and uplinks + cores * bundle <= radix:
            return cores, bundle
    raise AssertionError("one cable per spine-core pair always fits below max_gpus")


def wire_clos(
    request: FabricRequest, shape: ClosShape, host: Cable, *, kind: str, title: str
) -> Topology:
    """Place the cables of a shape and return the finished fabric."""
    blocks = [_host_block(request, shape, host)]
    if shape.num_tiers > 1:
        blocks.append(_leaf_spine_block(request, shape))
    if shape.num_tiers > 2:
        blocks.append(_spine_core_block(request, shape))
    links = join_blocks(blocks)
    topology = Topology(
        kind=kind,
        name=f"{title}, {shape.num_tiers} tier(s), {request.num_gpus} GPUs, radix {request.radix}",
        num_gpus=request.num_gpus,
        gpus_per_server=request.gpus_per_server,
        nic_rate_bps=request.nic_rate_bps,
        port_rate_bps=request.port_rate_bps,
        num_tiers=shape.num_tiers,
        switches=_switches(shape, request.radix),
        links=links,
        access_links=access_links_of(links, request.num_gpus),
    )
    topology.check_invariants()
    return topology


def _switches(shape: ClosShape, radix: int) -> tuple[Switch, ...]:
    return (
        number_switches(SwitchRole.LEAF, shape.num_leaves, radix)
        + number_switches(SwitchRole.SPINE, shape.num_spines, radix)
        + number_switches(SwitchRole.CORE, shape.num_cores, radix)
    )


def leaf_of_gpu(request: FabricRequest, shape: ClosShape) -> IntArray:
    """Return ``[num_gpus]`` leaf indices: servers in even runs over the leaves of a rail.

    Leaves are numbered pod by pod, rail by rail, run by run.
    """
    server, rail = np.divmod(np.arange(request.num_gpus), request.gpus_per_server)
    runs = shape.num_pods * shape.leaves_per_rail
    pod, run = np.divmod(server * runs // request.num_servers, shape.leaves_per_rail)
    group = rail * shape.num_rails // request.gpus_per_server
    leaf: IntArray = pod * shape.leaves_per_pod + group * shape.leaves_per_rail + run
    return leaf


def _host_block(request: FabricRequest, shape: ClosShape, host: Cable) -> LinkTable:
    leaf = leaf_of_gpu(request, shape)
    return link_block(np.arange(request.num_gpus), request.num_gpus + leaf, host)


def _fabric_cable(request: FabricRequest) -> Cable:
    return Cable(
        rate_bps=request.port_rate_bps,
        scope=Scope.FABRIC,
        medium=Medium.FIBRE,
        length=LengthClass.HALL,
    )


def _leaf_spine_block(request: FabricRequest, shape: ClosShape) -> LinkTable:
    leaf, spine, _ = np.indices((shape.num_leaves, shape.spines_per_pod, shape.leaf_bundle))
    pod = leaf // shape.leaves_per_pod
    first_spine = request.num_gpus + shape.num_leaves
    end_b = first_spine + pod * shape.spines_per_pod + spine
    return link_block((request.num_gpus + leaf).ravel(), end_b.ravel(), _fabric_cable(request))


def _spine_core_block(request: FabricRequest, shape: ClosShape) -> LinkTable:
    spine, core, _ = np.indices((shape.num_spines, shape.cores_per_spine, shape.core_bundle))
    first_spine = request.num_gpus + shape.num_leaves
    group = spine % shape.spines_per_pod
    end_b = first_spine + shape.num_spines + group * shape.cores_per_spine + core
    return link_block((first_spine + spine).ravel(), end_b.ravel(), _fabric_cable(request))
