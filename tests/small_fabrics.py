"""Fabrics given cable by cable, for cases no builder makes."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kvfabric.fabric.graph import (
    Cable,
    LengthClass,
    Medium,
    Scope,
    SwitchRole,
    Topology,
    access_links_of,
    join_blocks,
    link_block,
    number_switches,
)

GBIT = 10**9


def wire_fabric(
    access: Sequence[Sequence[int]],
    cables: Sequence[tuple[int, int]],
    *,
    gpus_per_server: int = 1,
    hosts_forward: bool = False,
) -> Topology:
    """Return a fabric: the switches at each GPU's ports, and the two switches of each cable."""
    num_gpus = len(access)
    ports = np.array(access)
    pairs = np.array(cables, np.int64).reshape(-1, 2)
    num_switches = int(max(ports.max(), pairs.max(initial=0))) + 1
    gpus = np.repeat(np.arange(num_gpus), ports.shape[1])
    links = join_blocks(
        [
            link_block(gpus, num_gpus + ports.ravel(), _cable(Scope.HOST)),
            link_block(num_gpus + pairs[:, 0], num_gpus + pairs[:, 1], _cable(Scope.FABRIC)),
        ]
    )
    topology = Topology(
        kind="by hand",
        name="by hand",
        num_gpus=num_gpus,
        gpus_per_server=gpus_per_server,
        nic_rate_bps=ports.shape[1] * 200 * GBIT,
        port_rate_bps=200 * GBIT,
        num_tiers=1,
        switches=number_switches(SwitchRole.LEAF, num_switches, 256),
        links=links,
        access_links=access_links_of(links, num_gpus),
        hosts_forward=hosts_forward,
    )
    topology.check_invariants()
    return topology


def channel_between(topology: Topology, tail: int, head: int) -> int:
    """Return the first channel between two nodes."""
    ends = (topology.channel_tail == tail) & (topology.channel_head == head)
    return int(np.flatnonzero(ends)[0])


def path_over(topology: Topology, src: int, switches: Sequence[int], dst: int) -> tuple[int, ...]:
    """Return the channels of a path from GPU to GPU over the given switches."""
    nodes = [src, *(topology.num_gpus + switch for switch in switches), dst]
    return tuple(channel_between(topology, a, b) for a, b in pairwise(nodes))


def _cable(scope: Scope) -> Cable:
    return Cable(rate_bps=200 * GBIT, scope=scope, medium=Medium.FIBRE, length=LengthClass.HALL)
