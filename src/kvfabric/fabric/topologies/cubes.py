"""What BCube and the recursive ZCube share: n^k GPUs, one NIC port per level, digits to base n.

A switch of level l serves the n GPUs whose numbers differ in digit l alone. Levels count from 0;
level 0 holds runs of n consecutive GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import IntArray, LengthClass, LinkTable, Medium
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import host_block, nearest

SHAPE_KEYS = ("k",)
DEFAULT_LEVELS = 2


@dataclass(frozen=True, slots=True)
class Cube:
    """The side n (GPUs per switch) and the number of levels k."""

    n: int
    k: int

    @property
    def num_gpus(self) -> int:
        """Return n^k."""
        num_gpus: int = self.n**self.k
        return num_gpus

    @property
    def switches_per_level(self) -> int:
        """Return n^(k-1)."""
        num_switches: int = self.n ** (self.k - 1)
        return num_switches

    def switch_of(self, level: int) -> IntArray:
        """Return ``[num_gpus]``: the switch within the level that serves each GPU.

        Its number is the GPU's without digit ``level``.
        """
        above, below = np.divmod(np.arange(self.num_gpus), self.n ** (level + 1))
        switch: IntArray = above * self.n**level + below % self.n**level
        return switch


def ports_per_nic(shape: Mapping[str, int]) -> int:
    """Return one NIC port per level; a shape that the builder refuses counts as the default."""
    levels = shape.get("k", DEFAULT_LEVELS)
    return levels if levels > 1 else DEFAULT_LEVELS


def largest_side(radix: int, ports: int) -> int:
    """Return the largest n of which ``ports`` x n switch ports are at hand."""
    return radix // ports


def keeps_servers_whole(gpus_per_server: int, gpus_per_switch: int) -> bool:
    """Return whether no server straddles two switches unless it fills them."""
    return gpus_per_switch % gpus_per_server == 0 or gpus_per_server % gpus_per_switch == 0


def find_cube(request: FabricRequest, kind: str, ports_per_side: int) -> Cube:
    """Return the cube with exactly the GPUs asked for, or refuse them with the nearest sizes.

    Args:
        request: its shape may say ``k``; two levels otherwise.
        kind: for the message.
        ports_per_side: the busiest switch has this many times n ports.
    """
    k = request.shape_value("k", DEFAULT_LEVELS, least=2)
    if k > request.num_gpus.bit_length():
        most = max(2, request.num_gpus.bit_length() - 1)
        raise ConfigError(
            f"k is {k}",
            where="fabric.shape",
            hint=f"Write at most {most}: k levels hold 2^k or more",
        )
    enough = isqrt(request.num_gpus) + 2 * request.gpus_per_server  # to find the next larger one
    sides = range(2, min(largest_side(request.radix, ports_per_side), enough) + 1)
    cubes = [Cube(n, k) for n in sides if _fits_servers(request, Cube(n, k))]
    for cube in cubes:
        if cube.num_gpus == request.num_gpus:
            return cube
    near = nearest((cube.num_gpus for cube in cubes), request.num_gpus)
    raise ConfigError(
        f"no {kind} of {request.num_gpus} GPUs and k = {k} exists with switches of "
        f"{request.radix} ports and servers of {request.gpus_per_server} GPUs",
        where="fabric.num_gpus",
        hint=f"Nearest sizes: {near}" if near else "Use switches with more ports",
    )


def _fits_servers(request: FabricRequest, cube: Cube) -> bool:
    whole = keeps_servers_whole(request.gpus_per_server, cube.n)
    return whole and cube.num_gpus % request.gpus_per_server == 0


def level_blocks(request: FabricRequest, cube: Cube) -> list[LinkTable]:
    """Return the host cables level by level; switches are numbered from level 0 up.

    Level 0 stands beside its GPUs and is reached by copper of 3 m, as published counts have it
    (SIGCOMM 2025, "From ATOP to ZCube", Table 7); level 1 by fibre of 15 m within the row, higher
    levels by fibre of 30 m.
    """
    reach = [(Medium.COPPER, LengthClass.RACK), (Medium.FIBRE, LengthClass.ROW)]
    reach += [(Medium.FIBRE, LengthClass.HALL)] * cube.k
    return [
        host_block(
            request,
            level * cube.switches_per_level + cube.switch_of(level),
            medium=reach[level][0],
            length=reach[level][1],
            ports_per_nic=cube.k,
        )
        for level in range(cube.k)
    ]
