"""ZCube(n, k) for any number of levels: n^k GPUs, each with a NIC port at a switch of every level.

ZCube(n, 1) is a switch with n GPUs. ZCube(n, k + 1) is n copies of ZCube(n, k) under n^k switches
of a new level: its switch i serves GPU i of every copy, and its switches i n to (i + 1) n - 1 are
joined with switch i of the level below in every copy. Switches have 2n ports at the lowest and the
highest level and 3n in between.

Source: "From ATOP to ZCube", SIGCOMM 2025, DOI 10.1145/3718958.3750503. ZCube(n, 2) is also the
flat fabric of ``zcube.py``, whose NIC ports are numbered the other way round; ZCube(n, 3)-partial,
with two NIC ports, stands there.
"""

import numpy as np

from kvfabric.fabric.graph import LinkTable, SwitchRole, Topology, number_switches
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import assemble, check_layers, fabric_block
from kvfabric.fabric.topologies.cubes import Cube, find_cube, largest_side, level_blocks

KIND = "zcube-recursive"


def build_zcube_recursive(request: FabricRequest) -> Topology:
    """Build ZCube(n, k) with exactly n^k GPUs; ``shape`` k is the number of levels, by default 2.

    NIC port l leads to level l. Level 0 holds whole servers within copper reach (single-rail), the
    higher levels spread them (multi-rail) over fibre; cables between switches are fibre of 30 m.
    """
    k = request.shape.get("k", 2)
    cube = find_cube(request, KIND, ports_per_side(k))
    check_layers(request, KIND, cube.k)
    upper = (cube.k - 1) * cube.switches_per_level
    return assemble(
        request,
        kind=KIND,
        title=f"ZCube({cube.n},{cube.k})",
        switches=number_switches(SwitchRole.SINGLE_RAIL, cube.switches_per_level, request.radix)
        + number_switches(SwitchRole.MULTI_RAIL, upper, request.radix),
        blocks=[
            *level_blocks(request, cube),
            *(_between_levels(request, cube, level) for level in range(1, cube.k)),
        ],
        num_tiers=cube.k,
    )


def ports_per_side(k: int) -> int:
    """Return how many times n ports the busiest switch of ZCube(n, k) has."""
    return 2 if k < 3 else 3


def most_gpus(radix: int, k: int) -> int:
    """Return the GPUs of the largest ZCube(n, k) that switches of ``radix`` ports can make."""
    return Cube(largest_side(radix, ports_per_side(k)), k).num_gpus


def _between_levels(request: FabricRequest, cube: Cube, level: int) -> LinkTable:
    """Return the cables between a level and the one below: switch i with i n + j, in every copy."""
    n, per_level = cube.n, cube.switches_per_level
    blocks, below, j = np.indices((cube.num_gpus // n ** (level + 1), n**level, n))
    # of n copies of n^(level-1) switches each, one block has n^level; `below` counts through them
    upper = blocks * n**level + below % n ** (level - 1) * n + j
    lower = blocks * n**level + below
    return fabric_block(request, (level - 1) * per_level + lower, level * per_level + upper)
