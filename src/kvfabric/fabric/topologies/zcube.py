"""ZCube: two groups of leaves, completely joined, every GPU with one NIC port in each group.

Port 0 of GPU i goes to the multi-rail group, which spreads a server's GPUs over its switches; port
1 goes to the single-rail group, which keeps whole servers on one switch within copper reach. With n
GPUs and k per switch a group has n / k switches, and k^2 / n parallel cables join two switches.

Source: "From ATOP to ZCube", SIGCOMM 2025, DOI 10.1145/3718958.3750503 (recursive definition), and
z.ai/blog/zcube, 2026-05-20 (any number of GPUs per switch).
"""

from collections.abc import Iterator

import numpy as np

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.graph import (
    IntArray,
    LengthClass,
    LinkTable,
    Medium,
    Switch,
    SwitchRole,
    Topology,
    number_switches,
)
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import assemble, fabric_block, host_block, nearest
from kvfabric.fabric.topologies.cubes import keeps_servers_whole

KIND = "zcube"
PORTS_PER_NIC = 2
SHAPE_KEYS = ("k",)


def build_zcube(request: FabricRequest) -> Topology:
    """Build ZCube in one layer, or with a core layer above where one layer cannot hold the GPUs.

    ``request.num_tiers`` 1 asks for the flat fabric (any two GPUs at most two switches apart), 2
    for the one with cores (four switches), None for the flat one where it exists. ``shape`` k is
    the number of GPUs per switch of the flat fabric; default: the most that can be had.
    """
    if request.oversubscription != 1:
        raise UnsupportedError(
            f"zcube with oversubscription {request.oversubscription}",
            where="fabric.oversubscription",
            hint="Leave it at 1; both groups carry the full NIC rate",
        )
    if request.num_tiers not in {None, 1, 2}:
        raise ConfigError(
            f"zcube with {request.num_tiers} tiers",
            where="fabric.num_tiers",
            hint="Write 1 (two groups of leaves) or 2 (with cores above)",
        )
    per_switch = _asked_per_switch(request) or gpus_per_switch(request)
    if per_switch and request.num_tiers != 2:
        return build_flat_zcube(request, per_switch)
    side = cube_side(request)
    if side and request.num_tiers != 1:
        return build_cored_zcube(request, side)
    raise _no_such_size(request)


def gpus_per_switch(request: FabricRequest) -> int:
    """Return the most GPUs one switch can serve in a flat ZCube, or 0 if it cannot be built.

    With n GPUs and k per switch there are n / k switches per group, so k must divide n, and n / k
    must divide k for the k fabric ports to spread evenly. A server never straddles two single-rail
    switches unless it fills them.
    """
    return max(_possible_per_switch(request), default=0)


def _possible_per_switch(request: FabricRequest) -> list[int]:
    num_gpus = request.num_gpus
    return [
        k
        for k in range(1, min(request.radix // 2, num_gpus) + 1)
        if num_gpus % k == 0
        and k % (num_gpus // k) == 0
        and keeps_servers_whole(request.gpus_per_server, k)
    ]


def _asked_per_switch(request: FabricRequest) -> int | None:
    """Return k of the shape, or None without one; refuse a k that cannot be built."""
    if "k" not in request.shape:
        return None
    if request.num_tiers == 2:
        raise ConfigError(
            "k is a size of the flat zcube, not of the one with cores",
            where="fabric.shape",
            hint="Leave out k, or write 1 tier",
        )
    k, possible = request.shape_value("k", 1), _possible_per_switch(request)
    if k not in possible:
        near = nearest(possible, k)
        raise ConfigError(
            f"no zcube of {request.num_gpus} GPUs with k = {k} per switch exists with switches of "
            f"{request.radix} ports",
            where="fabric.shape",
            hint=f"k divides the GPUs, and GPUs / k divides k; nearest k: {near}"
            if near
            else "Leave out k to see the nearest numbers of GPUs",
        )
    return k


def cube_side(request: FabricRequest) -> int:
    """Return n where the GPUs are n x n x n, n is even and 3n ports are there; else 0."""
    side = round(request.num_gpus ** (1 / 3))
    fits = side**3 == request.num_gpus and side % 2 == 0 and 3 * side <= request.radix
    return side if fits and keeps_servers_whole(request.gpus_per_server, side) else 0


def _no_such_size(request: FabricRequest) -> ConfigError:
    near = nearest(_buildable_sizes(request), request.num_gpus)
    return ConfigError(
        f"no zcube of {request.num_gpus} GPUs exists with switches of {request.radix} ports",
        where="fabric.num_gpus",
        hint=f"Nearest sizes: {near}" if near else "Use switches with more ports",
    )


def _buildable_sizes(request: FabricRequest) -> Iterator[int]:
    """Yield the sizes that the same switches and servers can make."""
    server = request.gpus_per_server
    for k in range(1, request.radix // 2 + 1) if request.num_tiers != 2 else ():
        groups = (g for g in range(1, k + 1) if k % g == 0 and k * g % server == 0)
        if keeps_servers_whole(server, k):
            yield from (k * g for g in groups)
    for side in range(2, request.radix // 3 + 1, 2) if request.num_tiers != 1 else ():
        if side**3 % server == 0 and keeps_servers_whole(server, side):
            yield side**3


def build_flat_zcube(request: FabricRequest, per_switch: int) -> Topology:
    """Build ZCube(n GPUs, k per switch): n / k switches per group, k^2 / n cables per switch pair.

    n = k^2 is the square ZCube(k, 2) with one cable per pair.
    """
    num_gpus, k = request.num_gpus, per_switch
    group, gpu = num_gpus // k, np.arange(num_gpus)
    odd, even, _ = np.indices((group, group, k // group))
    square = f"ZCube({k},2)"
    return assemble(
        request,
        kind=KIND,
        title=square if group == k else f"ZCube, {k} GPUs per switch, {k // group} cables per pair",
        switches=_leaf_groups(group, request.radix),
        blocks=[
            *_host_blocks(request, gpu % group, group + gpu // k),
            fabric_block(request, odd, group + even),
        ],
    )


def build_cored_zcube(request: FabricRequest, side: int) -> Topology:
    """Build ZCube(n,3)-partial: n square cubes under n^2 / 2 cores that join the multi-rail leaves.

    Multi-rail leaves 2j and 2j + 1 of every cube share the n cores of group j.
    """
    n = side
    per_group = n * n  # leaves of one group over all cubes
    cube, within = np.divmod(np.arange(n**3), n * n)
    cube_of, odd, even = np.indices((n, n, n))
    leaf, uplink = np.indices((per_group, n))
    core = 2 * per_group + (leaf % n) // 2 * n + uplink
    cores = number_switches(SwitchRole.CORE, n * n // 2, request.radix)
    return assemble(
        request,
        kind=KIND,
        title=f"ZCube({n},3)-partial",
        switches=_leaf_groups(per_group, request.radix) + cores,
        blocks=[
            *_host_blocks(request, cube * n + within % n, per_group + cube * n + within // n),
            fabric_block(request, cube_of * n + odd, per_group + cube_of * n + even),
            fabric_block(request, leaf, core),
        ],
        num_tiers=2,
    )


def _leaf_groups(per_group: int, radix: int) -> tuple[Switch, ...]:
    multi = number_switches(SwitchRole.MULTI_RAIL, per_group, radix)
    return multi + number_switches(SwitchRole.SINGLE_RAIL, per_group, radix)


def _host_blocks(
    request: FabricRequest, multi_rail: IntArray, single_rail: IntArray
) -> list[LinkTable]:
    fibre = (Medium.FIBRE, LengthClass.ROW)
    copper = (Medium.COPPER, LengthClass.RACK)
    return [
        host_block(request, switch, medium=medium, length=length, ports_per_nic=PORTS_PER_NIC)
        for switch, (medium, length) in ((multi_rail, fibre), (single_rail, copper))
    ]
