"""Sizes of folded Clos fabrics: how many switches of each tier, and how many cables between two.

Several kinds are wired after such a shape; see ``clos.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.fabric.request import FabricRequest
from kvfabric.units import ceil_div

MAX_TIERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosShape:
    """How many switches of each tier, and how many parallel cables between two of them.

    Attributes:
        num_tiers: 1, 2 or 3.
        num_planes: equal fabrics side by side that share no switch; the rest counts in one of them.
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
    num_planes: int = 1
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
    def leaves_per_plane(self) -> int:
        """Return the leaves of all pods of one plane."""
        return self.num_pods * self.leaves_per_pod

    @property
    def num_leaves(self) -> int:
        """Return the leaves of all planes."""
        return self.num_planes * self.leaves_per_plane

    @property
    def num_spines(self) -> int:
        """Return the spines of all planes."""
        return self.num_planes * self.num_pods * self.spines_per_pod

    @property
    def num_cores(self) -> int:
        """Return the cores of all planes."""
        return self.num_planes * self.spines_per_pod * self.cores_per_spine


def clos_shape(request: FabricRequest, *, num_rails: int) -> ClosShape:
    """Return the shape with the given number of tiers, or with the fewest that hold the GPUs."""
    tiers = allowed_tiers(request, (1, 2, 3))
    for num_tiers in tiers:
        if request.num_gpus <= max_gpus(request, num_tiers, num_rails=num_rails):
            return _shape_of(request, num_tiers, num_rails)
    largest = max(max_gpus(request, num_tiers, num_rails=num_rails) for num_tiers in tiers)
    raise too_many_gpus(request, tiers[-1], largest)


def allowed_tiers(request: FabricRequest, known: Sequence[int]) -> Sequence[int]:
    """Return the tiers to try, the fewest first, or refuse a number the kind does not have."""
    if request.num_tiers is None:
        return known
    if request.num_tiers not in known:
        numbers = ", ".join(map(str, known[:-1]))
        raise ConfigError(
            f"{request.num_tiers} tiers",
            where="fabric.num_tiers",
            hint=f"Write {numbers} or {known[-1]}",
        )
    return (request.num_tiers,)


def too_many_gpus(request: FabricRequest, num_tiers: int, largest: int) -> ConfigError:
    """Return the mistake of asking for more GPUs than the switches hold."""
    fits = (
        f"The largest that fits is {largest} GPUs"
        if largest
        else "With so few ports no server fits"
    )
    return ConfigError(
        f"{request.num_gpus} GPUs do not fit {num_tiers} tier(s) of switches with "
        f"{request.radix} ports",
        where="fabric.num_gpus",
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
