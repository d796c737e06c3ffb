"""Dragonfly: groups of fully joined routers, and the groups joined with each other.

a routers per group, p GPUs and h global cables per router, g groups. With g = a h + 1 (canonical)
every two groups share one cable; with fewer groups the a h global ports of each are spread over the
others as evenly as possible.

Source: Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008; balanced at
a = 2p = 2h.
"""

from dataclasses import dataclass

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import IntArray, LengthClass, LinkTable, Medium, Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import check_layers, fabric_block
from kvfabric.fabric.topologies.direct_network import check_room, check_router_ports, wire_routers

KIND = "dragonfly"
SHAPE_KEYS = ("a", "p", "h", "g")


@dataclass(frozen=True, slots=True, kw_only=True)
class DragonflyShape:
    """Routers per group (a), GPUs (p) and global cables (h) per router, and groups (g)."""

    a: int
    p: int
    h: int
    g: int

    @property
    def max_groups(self) -> int:
        """Return the groups at which every two share one cable."""
        return self.a * self.h + 1

    @property
    def router_ports(self) -> int:
        """Return the ports of a router in use: GPUs, the rest of its group, global cables."""
        return self.p + self.a - 1 + self.h

    @property
    def num_routers(self) -> int:
        """Return the routers of all groups."""
        return self.g * self.a

    @property
    def room(self) -> int:
        """Return the number of GPU ports."""
        return self.num_routers * self.p


def build_dragonfly(request: FabricRequest) -> Topology:
    """Build the smallest balanced canonical dragonfly that holds the GPUs, or the one of ``shape``.

    GPUs fill the routers in order; ports left over stay free. Cables within a group are copper of
    3 m, as the counts of the ZCube paper (SIGCOMM 2025, Table 7) have it: a group stands in
    neighboring racks. Global cables are fibre of 30 m.
    """
    check_layers(request, KIND, 1)
    shape = dragonfly_shape(request)
    return wire_routers(
        request,
        _cables(request, shape),
        kind=KIND,
        title=f"Dragonfly a={shape.a}, p={shape.p}, h={shape.h}, {shape.g} groups",
        num_routers=shape.num_routers,
        gpus_per_router=shape.p,
    )


def dragonfly_shape(request: FabricRequest) -> DragonflyShape:
    """Return a, p, h and g, or refuse sizes that do not fit; what is not given is balanced."""
    h = request.shape_value("h", 1) if "h" in request.shape else _balanced_h(request)
    a = request.shape_value("a", 2 * h)
    given = DragonflyShape(a=a, p=request.shape_value("p", h), h=h, g=a * h + 1)
    g = request.shape_value("g", given.max_groups)
    if g > given.max_groups:
        raise ConfigError(
            f"{g} groups of {a} routers with {h} global cables each cannot all be joined",
            where="fabric.shape",
            hint=f"Write g of at most a h + 1 = {given.max_groups}",
        )
    shape = DragonflyShape(a=a, p=given.p, h=h, g=g)
    check_router_ports(
        request, KIND, shape.router_ports, f"Write p + (a - 1) + h <= {request.radix}"
    )
    check_room(request, KIND, shape.room, "Write a larger a, p, h or g")
    return shape


def _balanced_h(request: FabricRequest) -> int:
    """Return the h that goes with the p or a asked for, or of the smallest shape for the GPUs."""
    if "p" in request.shape:
        return request.shape_value("p", 1)
    if "a" in request.shape:
        return max(1, request.shape_value("a", 1) // 2)
    largest = (request.radix + 1) // 4  # p + (a - 1) + h = 4h - 1 ports
    for h in range(1, largest + 1):
        if balanced_room(h) >= request.num_gpus:
            return h
    most = balanced_room(largest) if largest else 0
    most -= most % request.gpus_per_server
    raise ConfigError(
        f"no balanced dragonfly of {request.num_gpus} GPUs exists with switches of "
        f"{request.radix} ports",
        where="fabric.num_gpus",
        hint=f"Write at most {most}" if most else "Use switches with more ports",
    )


def balanced_room(h: int) -> int:
    """Return the GPUs of the canonical dragonfly with a = 2h and p = h."""
    return 2 * h * h * (2 * h * h + 1)


def _cables(request: FabricRequest, shape: DragonflyShape) -> list[LinkTable]:
    low, high = np.triu_indices(shape.a, 1)
    first = shape.a * np.arange(shape.g)[:, None]
    local = fabric_block(
        request, first + low, first + high, medium=Medium.COPPER, length=LengthClass.RACK
    )
    return [local, fabric_block(request, *_global_ends(shape))]


def _global_ends(shape: DragonflyShape) -> tuple[IntArray, IntArray]:
    """Return the routers at both ends of every global cable.

    A group numbers its cables round by round, in each round by the distance of the other group on a
    ring of all groups; cable i hangs on router i // h. So parallel cables between two groups hang
    on different routers as long as there are more groups than a router has global cables. In the
    canonical case this is the relative ("palmtree") arrangement, which gives the path lengths of
    the ZCube paper (SIGCOMM 2025, Table 3).
    """
    turn, group_a, group_b = group_pairs(shape.g, shape.a * shape.h)
    group = np.concatenate([group_a, group_b])
    distance = (np.concatenate([group_b, group_a]) - group) % shape.g
    order = np.lexsort((distance, np.tile(turn, 2), group))
    num_before = np.searchsorted(group[order], np.arange(shape.g))
    position = np.empty(len(group), dtype=np.int64)
    position[order] = np.arange(len(group)) - num_before[group[order]]
    router = group * shape.a + position // shape.h
    return router[: len(turn)], router[len(turn) :]


def group_pairs(num_groups: int, ports: int) -> tuple[IntArray, IntArray, IntArray]:
    """Return (round, lower group, higher group) of every global cable.

    Full rounds join every two groups. The ``rest`` ports of a group that remain join it with the
    groups at distance 1 to rest / 2 on a ring and, where the rest is odd, with one more group; with
    an odd number of groups one port then stays free, since the ports do not pair up.
    """
    if num_groups == 1:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none
    full, rest = divmod(ports, num_groups - 1)
    low, high = np.triu_indices(num_groups, 1)
    group = np.arange(num_groups)
    ring = [(group, (group + step) % num_groups) for step in range(1, rest // 2 + 1)]
    if rest % 2:
        half = num_groups // 2
        ring.append((group[:half], group[:half] + half))
    pairs = [(low, high)] * full + ring
    turns = [*range(full), *[full] * len(ring)]
    turn = np.concatenate(
        [np.full(len(pair[0]), number) for number, pair in zip(turns, pairs, strict=True)]
    )
    ends = np.stack([np.concatenate([pair[side] for pair in pairs]) for side in (0, 1)])
    return turn, ends.min(axis=0), ends.max(axis=0)
