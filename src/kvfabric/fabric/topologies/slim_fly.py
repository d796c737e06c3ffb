"""Slim Fly: routers joined by a McKay-Miller-Siran graph, any two at most two cables apart.

For a prime power q = 4w + d with d in -1, 0, 1 there are 2 q^2 routers of degree k' = (3q - d) / 2.
Router (0, x, y) is joined with (0, x, y') where y' - y is in X, (1, m, c) with (1, m, c') where
c' - c is in X', and (0, x, y) with (1, m, c) where y = m x + c, all over GF(q).

Source: Besta and Hoefler, "Slim Fly: A Cost Effective Low-Diameter Network Topology", SC 2014;
generator sets: Hafner, "Geometric realisation of the graphs of McKay-Miller-Siran", JCT B 90, 2004.
"""

from collections.abc import Iterator
from itertools import count, takewhile

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import IntArray, Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import check_layers, fabric_block, nearest
from kvfabric.fabric.topologies.direct_network import check_room, check_router_ports, wire_routers
from kvfabric.fabric.topologies.finite_field import FiniteField, finite_field, prime_power
from kvfabric.units import ceil_div

KIND = "slim-fly"
SHAPE_KEYS = ("q", "p")


def build_slim_fly(request: FabricRequest) -> Topology:
    """Build the smallest Slim Fly that holds the GPUs, or the one of ``shape`` q (and p).

    p GPUs hang on a router, by default ceil(k' / 2), which is full bandwidth for uniform traffic.
    A rack of routers (0, x, y) and (1, x, y) for all y serves 2 q p GPUs, more than a rack of
    servers holds, so every cable between routers is fibre of 30 m.
    """
    check_layers(request, KIND, 1)
    q = _asked_order(request) if "q" in request.shape else _smallest_order(request)
    p = gpus_per_router(request, q)
    check_room(request, KIND, num_routers(q) * p, "Write a larger q or p")
    end_a, end_b = mms_graph(q)
    return wire_routers(
        request,
        [fabric_block(request, end_a, end_b)],
        kind=KIND,
        title=f"Slim Fly q={q}, p={p}",
        num_routers=num_routers(q),
        gpus_per_router=p,
    )


def num_routers(q: int) -> int:
    """Return 2 q^2."""
    return 2 * q * q


def router_degree(q: int) -> int:
    """Return k' = (3q - d) / 2, the routers next to each one."""
    return (3 * q - _remainder(q)) // 2


def _remainder(q: int) -> int:
    """Return d of q = 4w + d; 2 where there is none in -1, 0, 1."""
    return (q + 1) % 4 - 1


def is_order(q: int) -> bool:
    """Return whether a Slim Fly of this q exists: a prime power of at least 3."""
    return q > 2 and prime_power(q) is not None


def gpus_per_router(request: FabricRequest, q: int) -> int:
    """Return p of the shape, by default ceil(k' / 2)."""
    return request.shape_value("p", ceil_div(router_degree(q), 2))


def _asked_order(request: FabricRequest) -> int:
    """Return q of the shape, or refuse one that does not exist or fit, with the nearest that do."""
    q = request.shape_value("q", 3)
    up_to = takewhile(lambda order: order <= 2 * q, (order for order, _ in _sizes(request)))
    near = nearest(up_to, q)  # a prime lies between q and 2q
    hint = f"Nearest q: {near}" if near else "Use switches with more ports, or a smaller p"
    check_router_ports(request, KIND, router_degree(q) + gpus_per_router(request, q), hint)
    if not is_order(q):
        raise ConfigError(
            f"no slim fly of q = {q} exists: {q} is no prime power of at least 3",
            where="fabric.shape",
            hint=hint,
        )
    return q


def _smallest_order(request: FabricRequest) -> int:
    """Return the smallest q that holds the GPUs, or refuse them with the most that fit."""
    most = 0
    for q, room in _sizes(request):
        if room >= request.num_gpus:
            return q
        most = room - room % request.gpus_per_server
    raise ConfigError(
        f"no slim fly of {request.num_gpus} GPUs exists with switches of {request.radix} ports",
        where="fabric.num_gpus",
        hint=f"Write at most {most}" if most else "Use switches with more ports",
    )


def _sizes(request: FabricRequest) -> Iterator[tuple[int, int]]:
    """Yield (q, most GPUs) of all graphs whose routers fit the switch, by rising q."""
    for q in filter(is_order, count(3)):
        p = gpus_per_router(request, q)
        if router_degree(q) + p > request.radix:
            return
        yield q, num_routers(q) * p


def mms_graph(q: int) -> tuple[IntArray, IntArray]:
    """Return the routers at both ends of every cable; router (t, x, y) is x * 2q + t * q + y."""
    gf = finite_field(q)
    x, y = np.indices((q, q))
    blocks = [_joined_within(gf, t, steps) for t, steps in enumerate(_generator_sets(gf))]
    # (0, x, y) with (1, m, c = y - m x) for every slope m
    slope = np.arange(q)[:, None, None]
    intercept = gf.subtract(y, gf.multiply(slope, x))
    end_a = np.broadcast_to(x * 2 * q + y, intercept.shape)
    blocks.append((end_a, slope * 2 * q + q + intercept))
    ends = [np.concatenate([block[side].ravel() for block in blocks]) for side in (0, 1)]
    return ends[0], ends[1]


def _generator_sets(gf: FiniteField) -> tuple[IntArray, IntArray]:
    """Return X and X', both closed under negation."""
    q, powers = gf.order, gf.powers
    if _remainder(q) != -1:
        even, odd = np.arange(0, q - 1, 2), np.arange(1, q, 2)
    else:
        w = (q + 1) // 4
        even = np.concatenate([np.arange(0, 2 * w - 1, 2), np.arange(2 * w - 1, 4 * w - 2, 2)])
        odd = np.concatenate([np.arange(1, 2 * w, 2), np.arange(2 * w, 4 * w - 1, 2)])
    return powers[even], powers[odd % (q - 1)]


def _joined_within(gf: FiniteField, t: int, steps: IntArray) -> tuple[IntArray, IntArray]:
    """Return the cables between routers (t, x, *) of the same x, for all x."""
    q = gf.order
    low, high = np.triu_indices(q, 1)
    joined = np.isin(gf.subtract(high, low), steps)
    first = (np.arange(q) * 2 * q + t * q)[:, None]
    return first + low[joined], first + high[joined]
