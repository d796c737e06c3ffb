"""Which lossless buffers wait for which, along given routes.

A switch keeps, per priority, room for what arrives over each of its channels. A frame in one such
buffer leaves only when the next buffer of its route has room. Where buffers wait for each other in
a circle, all of them can fill up and pause each other for good.

Source: Dally and Seitz, "Deadlock-free message routing in multiprocessor interconnection networks",
IEEE Trans. Computers C-36 (1987): no cycle among the dependencies, no deadlock. Hu et al.,
"Deadlocks in datacenter networks", HotNets 2016: the same for priority flow control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import IntArray, Topology

MAX_PRIORITIES = 8  # IEEE 802.1Qbb pauses eight priorities


@dataclass(frozen=True, slots=True)
class Route:
    """A path in use: channels from the source's NIC port on, and the priority on each.

    Attributes:
        channels: at least one. Where the first one leaves a switch, it is hop 1.
        priorities: one per channel, from 1; empty for the first priority all the way.
    """

    channels: tuple[int, ...]
    priorities: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HopPriorities:
    """At which hops a route goes over to its next priority.

    Hops count from 1 at the first cable after the NIC's own: between switches, or out of a NIC that
    forwards. ``raised_at=(2,)`` is: the second priority from hop 2 on. Priorities count from 1 as
    well; they are classes of their own, not the code points a switch gives them.
    """

    raised_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse hops that no route can change at, and more priorities than exist."""
        is_ascending = all(hop < later for hop, later in pairwise(self.raised_at))
        if not is_ascending or any(hop < 2 for hop in self.raised_at):
            raise ConfigError(
                f"priority raised at hops {list(self.raised_at)}",
                hint="Write ascending hops from 2 on, such as 2, 3",
            )
        if self.num_priorities > MAX_PRIORITIES:
            raise ConfigError(
                f"{self.num_priorities} priorities", hint=f"Write at most {MAX_PRIORITIES - 1} hops"
            )

    @property
    def num_priorities(self) -> int:
        """Return how many priorities are in use."""
        return len(self.raised_at) + 1

    def at(self, hop: int) -> int:
        """Return the priority on a hop.

        >>> [HopPriorities((2,)).at(hop) for hop in (1, 2, 3)]
        [1, 2, 2]
        """
        return 1 + sum(hop >= raised for raised in self.raised_at)


ONE_PRIORITY = HopPriorities()


@dataclass(frozen=True, slots=True)
class Buffer:
    """The room for what arrives over one channel in one priority."""

    channel: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferDependencies:
    """The graph of buffers; an edge says that one drains only into the other.

    Buffers no route leads through, and those at NICs that keep what they receive, are left out.

    Attributes:
        buffers: channel and priority of each, ``[num_buffers, 2]``.
        holding: of each edge the buffer that is held, ``[num_edges]``.
        awaited: of each edge the buffer that must have room, ``[num_edges]``.
        max_hops: no route has more, as ``HopPriorities`` counts them.
    """

    buffers: IntArray
    holding: IntArray
    awaited: IntArray
    max_hops: int

    def buffer(self, number: int) -> Buffer:
        """Return one buffer as a record."""
        channel, priority = self.buffers[number].tolist()
        return Buffer(channel, priority)


def number_buffers(
    holding: Sequence[Sequence[int]] | IntArray,
    awaited: Sequence[Sequence[int]] | IntArray,
    max_hops: int,
) -> BufferDependencies:
    """Return the graph of edges given as rows of (channel, priority); equal edges are one."""
    rows = np.concatenate(
        [np.asarray(ends, np.int64).reshape(-1, 2) for ends in (holding, awaited)]
    )
    # a number per buffer and per edge, found without sorting rows: that would take most of the time
    base = int(rows[:, 1].max(initial=0)) + 1
    keys = rows[:, 0] * base + rows[:, 1]
    is_present = np.zeros(int(keys.max(initial=-1)) + 1, bool)
    is_present[keys] = True
    buffers = np.flatnonzero(is_present)
    held, next_one = (np.cumsum(is_present) - 1)[keys].reshape(2, -1)
    edges = np.sort(held * len(buffers) + next_one)
    edges = edges[np.diff(edges, prepend=-1) > 0]
    held, next_one = np.divmod(edges, max(1, len(buffers)))
    return BufferDependencies(
        buffers=np.stack(np.divmod(buffers, base), axis=1),
        holding=held,
        awaited=next_one,
        max_hops=max_hops,
    )


def route_dependencies(
    topology: Topology, routes: Sequence[Route], priorities: HopPriorities = ONE_PRIORITY
) -> BufferDependencies:
    """Return the dependencies of a list of routes.

    Args:
        topology: the fabric they cross.
        routes: the paths in use. Where they name priorities, ``priorities`` adds to them: what it
            raises moves to a class of its own beyond all that are named.
        priorities: at which hops a route goes over to its next priority.

    Raises:
        ConfigError: a route is no path of the fabric, or passes a NIC that does not forward.
    """
    named = num_named_priorities(routes)
    holding: list[tuple[int, int]] = []
    awaited: list[tuple[int, int]] = []
    ends = topology.channel_tail, topology.channel_head
    for number, route in enumerate(routes):
        _check_route(topology, ends, number, route)
        base = route.priorities or (1,) * len(route.channels)
        first_hop = 0 if ends[0][route.channels[0]] < topology.num_gpus else 1
        buffers = [
            (channel, priority + named * (priorities.at(hop) - 1))
            for hop, (channel, priority) in enumerate(
                zip(route.channels, base, strict=True), start=first_hop
            )
        ]
        holding += buffers[:-1]
        awaited += buffers[1:]
    longest = max((len(route.channels) for route in routes), default=1)
    return number_buffers(holding, awaited, max_hops=longest)


def num_named_priorities(routes: Sequence[Route]) -> int:
    """Return the highest priority that routes name, at least 1."""
    return max((max(route.priorities, default=1) for route in routes), default=1)


def _check_route(
    topology: Topology, ends: tuple[IntArray, IntArray], number: int, route: Route
) -> None:
    tail, head = ends
    where = f"route {number}"
    channels, priorities = route.channels, route.priorities
    if not channels or not all(0 <= channel < topology.num_channels for channel in channels):
        raise ConfigError(
            f"channels {list(channels)}",
            where=where,
            hint=f"Write one or more channels from 0 to {topology.num_channels - 1}",
        )
    if priorities and (len(priorities) != len(channels) or min(priorities) < 1):
        raise ConfigError(
            f"priorities {list(priorities)} for {len(channels)} channels",
            where=where,
            hint="Write one priority per channel, from 1, or none",
        )
    for before, after in pairwise(channels):
        node = int(head[before])
        if node != tail[after]:
            raise ConfigError(
                f"{topology.channel_name(after)} does not begin where "
                f"{topology.channel_name(before)} ends",
                where=where,
                hint="Write channels that follow each other",
            )
        if node < topology.num_gpus and not topology.hosts_forward:
            raise ConfigError(
                f"passes {topology.node_name(node)}, whose NIC does not forward",
                where=where,
                hint="End the route there",
            )
