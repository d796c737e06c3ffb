"""Jellyfish: switches joined at random, every one with the same number of neighbors.

S switches of R ports, r of them to other switches and R - r to GPUs: a random r-regular graph.

Source: Singla et al., "Jellyfish: Networking Data Centers Randomly", NSDI 2012.
"""

from dataclasses import dataclass

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import check_layers, fabric_block
from kvfabric.fabric.topologies.direct_network import check_room, check_router_ports, wire_routers
from kvfabric.fabric.topologies.random_regular import random_regular_graph
from kvfabric.units import ceil_div

KIND = "jellyfish"
SHAPE_KEYS = ("switches", "r", "seed")


@dataclass(frozen=True, slots=True)
class JellyfishShape:
    """The number of switches (S), and each one's ports to others (r) and to GPUs."""

    num_switches: int
    r: int
    gpus_per_switch: int


def build_jellyfish(request: FabricRequest) -> Topology:
    """Build a Jellyfish; the same ``shape`` seed (default 0) gives the same cables.

    GPUs fill the switches in order. Who is joined with whom follows no place in the hall, so every
    cable between switches is fibre of 30 m.
    """
    check_layers(request, KIND, 1)
    shape = jellyfish_shape(request)
    seed = request.shape_value("seed", 0, least=0)
    edges = random_regular_graph(shape.num_switches, shape.r, np.random.default_rng(seed))
    return wire_routers(
        request,
        [fabric_block(request, edges[:, 0], edges[:, 1])],
        kind=KIND,
        title=f"Jellyfish S={shape.num_switches}, r={shape.r}, seed {seed}",
        num_routers=shape.num_switches,
        gpus_per_router=shape.gpus_per_switch,
    )


def jellyfish_shape(request: FabricRequest) -> JellyfishShape:
    """Return S, r and GPUs per switch, or refuse what no random regular graph has.

    Without ``shape`` r, a third of the ports in use lead to GPUs, as in a two-tier folded Clos:
    r = 2h with h GPUs per switch, for the largest h that the switches and r < S allow. With it all
    other ports are for GPUs, R - r.
    """
    if "r" in request.shape:
        r = request.shape_value("r", 2, least=2)
        check_router_ports(request, KIND, r + 1, f"Write r below {request.radix}")
        hosts = request.radix - r
    else:
        hosts = _balanced_hosts(request)
        r = 2 * hosts
    fewest = max(ceil_div(request.num_gpus, hosts), r + 1)
    fewest += fewest * r % 2
    shape = JellyfishShape(request.shape_value("switches", fewest), r, hosts)
    _check_graph(shape)
    _check_few(request, shape, fewest)
    check_room(request, KIND, shape.num_switches * hosts, f"Write at least {fewest} switches")
    return shape


def _balanced_hosts(request: FabricRequest) -> int:
    """Return the most GPUs per switch, at twice as many neighbors, that leave r < S."""
    for hosts in range(min(request.radix // 3, request.num_gpus), 0, -1):
        switches = request.shape.get("switches", ceil_div(request.num_gpus, hosts))
        if switches > 2 * hosts:
            return hosts
    raise ConfigError(
        f"no jellyfish of {request.num_gpus} GPUs exists with switches of {request.radix} ports",
        where="fabric.num_gpus",
        hint="Write at least 3 GPUs and 3 switches of at least 3 ports",
    )


def _check_graph(shape: JellyfishShape) -> None:
    if shape.num_switches <= shape.r:
        raise ConfigError(
            f"{shape.num_switches} switches cannot have {shape.r} different neighbors each",
            where="fabric.shape",
            hint=f"Write at least {shape.r + 1} switches or r of at most {shape.num_switches - 1}",
        )
    if shape.num_switches * shape.r % 2:
        raise ConfigError(
            f"{shape.num_switches} switches with {shape.r} neighbors each leave one port unpaired",
            where="fabric.shape",
            hint=f"Write {shape.num_switches + 1} switches or r of {shape.r - 1} or {shape.r + 1}",
        )


def _check_few(request: FabricRequest, shape: JellyfishShape, fewest: int) -> None:
    most = max(fewest, request.num_gpus)
    if shape.num_switches > most:
        raise ConfigError(
            f"{shape.num_switches} switches are more than the {request.num_gpus} GPUs",
            where="fabric.shape",
            hint=f"Write {fewest} to {most} switches",
        )
