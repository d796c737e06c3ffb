"""ZCube: two groups of leaves, completely joined, every GPU with one NIC port in each group.

Port 0 of GPU i goes to the multi-rail group, which spreads a server's GPUs over its switches; port
1 goes to the single-rail group, which keeps whole servers on one switch within copper reach.

Source: "From ATOP to ZCube", SIGCOMM 2025, DOI 10.1145/3718958.3750503 (recursive definition), and
z.ai/blog/zcube, 2026-05-20 (any number of GPUs per switch).
"""

from collections.abc import Iterator

import numpy as np

from kvfabric.errors import ConfigError, UnsupportedError
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

PORTS_PER_NIC = 2


def build_zcube(request: FabricRequest) -> Topology:
    """Build ZCube in one layer, or with a core layer above where one layer cannot hold the GPUs.

    ``request.num_tiers`` 1 asks for the flat fabric (any two GPUs at most two switches apart), 2
    for the one with cores (four switches), None for the flat one where it exists.
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
    per_switch = gpus_per_switch(request)
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
    num_gpus = request.num_gpus
    for k in range(min(request.radix // 2, num_gpus), 0, -1):
        if num_gpus % k == 0 and k % (num_gpus // k) == 0 and _keeps_servers_whole(request, k):
            return k
    return 0


def _keeps_servers_whole(request: FabricRequest, per_switch: int) -> bool:
    server = request.gpus_per_server
    return per_switch % server == 0 or server % per_switch == 0


def cube_side(request: FabricRequest) -> int:
    """Return n where the GPUs are n x n x n, n is even and 3n ports are there; else 0."""
    side = round(request.num_gpus ** (1 / 3))
    fits = side**3 == request.num_gpus and side % 2 == 0 and 3 * side <= request.radix
    return side if fits and _keeps_servers_whole(request, side) else 0


def _no_such_size(request: FabricRequest) -> ConfigError:
    sizes = sorted(set(_buildable_sizes(request)))
    below = [size for size in sizes if size < request.num_gpus]
    above = [size for size in sizes if size > request.num_gpus]
    near = " or ".join(str(size) for size in below[-1:] + above[:1])
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
        yield from (k * g for g in groups if _keeps_servers_whole(request, k))
    for side in range(2, request.radix // 3 + 1, 2) if request.num_tiers != 1 else ():
        if side**3 % server == 0 and _keeps_servers_whole(request, side):
            yield side**3


def build_flat_zcube(request: FabricRequest, per_switch: int) -> Topology:
    """Build ZCube(n GPUs, k per switch): n / k switches per group, k^2 / n cables per switch pair.

    n = k^2 is the square ZCube(k, 2) with one cable per pair.
    """
    num_gpus, k = request.num_gpus, per_switch
    group, gpu = num_gpus // k, np.arange(num_gpus)
    odd, even, _ = np.indices((group, group, k // group))
    links = join_blocks(
        [
            *_host_blocks(request, gpu % group, group + gpu // k),
            _fabric_block(request, odd.ravel(), group + even.ravel()),
        ]
    )
    square = f"ZCube({k},2)"
    title = square if group == k else f"ZCube, {k} GPUs per switch, {k // group} cables per pair"
    switches = _leaf_groups(group, request.radix)
    return _finish(request, links, switches, num_tiers=1, title=f"{title}, {num_gpus} GPUs")


def build_cored_zcube(request: FabricRequest, side: int) -> Topology:
    """Build ZCube(n,3)-partial: n square cubes under n^2 / 2 cores that join the multi-rail leaves.

    Multi-rail leaves 2j and 2j + 1 of every cube share the n cores of group j.
    """
    n = side
    per_group = n * n  # leaves of one group over all cubes
    gpu = np.arange(n**3)
    cube, within = np.divmod(gpu, n * n)
    cube_of, odd, even = np.indices((n, n, n))
    joined = _fabric_block(
        request, (cube_of * n + odd).ravel(), (per_group + cube_of * n + even).ravel()
    )
    leaf, uplink = np.indices((per_group, n))
    core = 2 * per_group + (leaf % n) // 2 * n + uplink
    links = join_blocks(
        [
            *_host_blocks(request, cube * n + within % n, per_group + cube * n + within // n),
            joined,
            _fabric_block(request, leaf.ravel(), core.ravel()),
        ]
    )
    cores = number_switches(SwitchRole.CORE, n * n // 2, request.radix)
    switches = _leaf_groups(per_group, request.radix) + cores
    title = f"ZCube({n},3)-partial, {request.num_gpus} GPUs"
    return _finish(request, links, switches, num_tiers=2, title=title)


def _leaf_groups(per_group: int, radix: int) -> tuple[Switch, ...]:
    multi = number_switches(SwitchRole.MULTI_RAIL, per_group, radix)
    return multi + number_switches(SwitchRole.SINGLE_RAIL, per_group, radix)


def _host_blocks(
    request: FabricRequest, multi_rail: IntArray, single_rail: IntArray
) -> list[LinkTable]:
    gpu, rate_bps = np.arange(request.num_gpus), request.host_rate_bps(PORTS_PER_NIC)
    fibre = Cable(rate_bps=rate_bps, scope=Scope.HOST, medium=Medium.FIBRE, length=LengthClass.ROW)
    copper = Cable(
        rate_bps=rate_bps, scope=Scope.HOST, medium=Medium.COPPER, length=LengthClass.RACK
    )
    return [
        link_block(gpu, request.num_gpus + multi_rail, fibre),
        link_block(gpu, request.num_gpus + single_rail, copper),
    ]


def _fabric_block(request: FabricRequest, switch_a: IntArray, switch_b: IntArray) -> LinkTable:
    cable = Cable(
        rate_bps=request.port_rate_bps,
        scope=Scope.FABRIC,
        medium=Medium.FIBRE,
        length=LengthClass.HALL,
    )
    return link_block(request.num_gpus + switch_a, request.num_gpus + switch_b, cable)


def _finish(
    request: FabricRequest,
    links: LinkTable,
    switches: tuple[Switch, ...],
    *,
    num_tiers: int,
    title: str,
) -> Topology:
    topology = Topology(
        kind="zcube",
        name=f"{title}, radix {request.radix}",
        num_gpus=request.num_gpus,
        gpus_per_server=request.gpus_per_server,
        nic_rate_bps=request.nic_rate_bps,
        port_rate_bps=request.port_rate_bps,
        num_tiers=num_tiers,
        switches=switches,
        links=links,
        access_links=access_links_of(links, request.num_gpus),
    )
    topology.check_invariants()
    return topology
