"""Whether priority flow control can lock a fabric up for good, on the paths it uses.

A cycle of buffer dependencies is what a deadlock needs; without one, none can happen whatever the
traffic. With one, the traffic decides. A fix is proposed only after the check was run again with it
and found no cycle.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from kvfabric.errors import ConfigError
from kvfabric.fabric.deadlocks.buffer_dependencies import (
    MAX_PRIORITIES,
    ONE_PRIORITY,
    Buffer,
    BufferDependencies,
    HopPriorities,
    Route,
    num_named_priorities,
    route_dependencies,
)
from kvfabric.fabric.deadlocks.dependency_cycles import has_cycle, shortest_cycle
from kvfabric.fabric.deadlocks.relay_dependencies import relay_dependencies
from kvfabric.fabric.deadlocks.shortest_path_dependencies import cable_dependencies, forwarding_of
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import POLICIES
from kvfabric.fabric.routes.paths import PathTable

# Policies that may send a message over any of its shortest paths; the others use some of them.
SHORTEST_PATH_POLICIES = ("ecmp", "spray", "assigned", "flowlet")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlockReport:
    """The verdict on the paths of a fabric.

    Attributes:
        paths: what was checked, in words.
        num_buffers: buffers that wait for another one or are waited for.
        num_dependencies: pairs of buffers of which one drains into the other.
        priorities: at which hops a route changes its priority.
        cycle: a shortest cycle, each buffer waiting for the next and the last for the first; empty
            where there is none.
        channel_names: of the buffers of the cycle.
        fix: priorities without a cycle, with the fewest changes; None where none are needed or
            eight are too few.
        forbidden_routes: of a list of routes, those to leave out instead; empty if none are needed.
    """

    paths: str
    num_buffers: int
    num_dependencies: int
    priorities: HopPriorities
    cycle: tuple[Buffer, ...]
    channel_names: tuple[str, ...]
    fix: HopPriorities | None = None
    forbidden_routes: tuple[int, ...] = ()

    @property
    def can_deadlock(self) -> bool:
        """Return whether there is a cycle."""
        return bool(self.cycle)

    def as_dict(self) -> dict[str, object]:
        """Return the verdict ready for JSON."""
        return {
            "paths": self.paths,
            "can_deadlock": self.can_deadlock,
            "priorities": self.priorities.num_priorities,
            "buffers": self.num_buffers,
            "dependencies": self.num_dependencies,
            "cycle": [
                {"channel": name, "priority": buffer.priority}
                for name, buffer in zip(self.channel_names, self.cycle, strict=True)
            ],
            "fix_raise_priority_at_hops": None if self.fix is None else list(self.fix.raised_at),
            "fix_forbidden_routes": list(self.forbidden_routes),
        }

    def lines(self) -> list[str]:
        """Return the verdict as lines of text."""
        checked = f"{self.paths}, {_count(self.priorities.num_priorities, 'lossless priority')}"
        if not self.can_deadlock:
            return [f"no deadlock: no cyclic buffer dependency ({checked})"]
        size = len(self.cycle)
        lines = [f"deadlock possible: {size} buffers wait for each other in a circle ({checked})"]
        lines += [
            f"  {name} (priority {buffer.priority}) waits for"
            for name, buffer in zip(self.channel_names, self.cycle, strict=True)
        ]
        lines.append(f"  {self.channel_names[0]} again")
        return lines + self._fix_lines()

    def _fix_lines(self) -> list[str]:
        lines = []
        if self.fix is not None:
            hops = " and again ".join(f"from hop {hop} on" for hop in self.fix.raised_at)
            lines.append(
                f"fix: send with the next priority {hops}, "
                f"{_count(self.fix.num_priorities, 'lossless priority')} in all: checked, no cycle"
            )
        if self.forbidden_routes:
            numbers = ", ".join(map(str, self.forbidden_routes))
            lines.append(f"{'or' if lines else 'fix:'} do not use routes {numbers}: checked")
        return lines or [f"no fix found with {MAX_PRIORITIES} priorities"]


def deadlock_report(
    topology: Topology, policy: str, priorities: HopPriorities = ONE_PRIORITY
) -> DeadlockReport:
    """Return the verdict on every path that a load-balancing policy may use.

    Exact for ``SHORTEST_PATH_POLICIES``. The others choose among the shortest paths by a fixed
    rule; all of these are checked, so "no deadlock" holds for them, and a cycle may need paths they
    do not use (``check_routes`` on their routes tells).

    Args:
        topology: the fabric.
        policy: its load balancing, one of ``POLICIES``.
        priorities: at which hops a route goes over to its next priority.
    """
    if policy not in POLICIES:
        raise ConfigError(
            f"unknown load balancing {policy!r}",
            where="fabric.load_balancing",
            hint=f"Write one of {', '.join(POLICIES)}",
        )
    uses = "" if policy in SHORTEST_PATH_POLICIES else ", which uses some of them"
    paths = PathTable(topology)
    forwarding = forwarding_of(paths)

    def dependencies(of: HopPriorities) -> BufferDependencies:
        if topology.hosts_forward:
            return relay_dependencies(paths, forwarding, of)
        return cable_dependencies(forwarding, of)

    return _report(topology, f"all shortest paths, {policy}{uses}", dependencies, priorities)


def check_routes(
    topology: Topology, routes: Sequence[Route], priorities: HopPriorities = ONE_PRIORITY
) -> DeadlockReport:
    """Return the verdict on a list of routes; ``priorities`` adds to those the routes name."""

    def dependencies(of: HopPriorities) -> BufferDependencies:
        return route_dependencies(topology, routes, of)

    def forbidden() -> tuple[int, ...]:
        return routes_to_forbid(topology, routes, priorities)

    return _report(
        topology,
        _count(len(routes), "route"),
        dependencies,
        priorities,
        num_named=num_named_priorities(routes),
        forbidden=forbidden,
    )


def _report(
    topology: Topology,
    paths: str,
    dependencies: Callable[[HopPriorities], BufferDependencies],
    priorities: HopPriorities,
    *,
    num_named: int = 1,
    forbidden: Callable[[], tuple[int, ...]] = tuple,
) -> DeadlockReport:
    graph = dependencies(priorities)
    cycle, most = find_cycle(graph), MAX_PRIORITIES // num_named
    return DeadlockReport(
        paths=paths,
        num_buffers=len(graph.buffers),
        num_dependencies=len(graph.holding),
        priorities=priorities,
        cycle=cycle,
        channel_names=tuple(topology.channel_name(buffer.channel) for buffer in cycle),
        fix=_priorities_without_cycle(dependencies, graph.max_hops, most) if cycle else None,
        forbidden_routes=forbidden() if cycle else (),
    )


def find_cycle(graph: BufferDependencies) -> tuple[Buffer, ...]:
    """Return the buffers of a shortest cycle in order; empty if there is none."""
    numbers = shortest_cycle(len(graph.buffers), graph.holding, graph.awaited)
    return tuple(graph.buffer(number) for number in numbers)


def _priorities_without_cycle(
    dependencies: Callable[[HopPriorities], BufferDependencies], max_hops: int, max_priorities: int
) -> HopPriorities | None:
    """Return the fewest changes of priority that leave no cycle, at the earliest hops."""
    for num_raised in range(1, min(max_hops, max_priorities)):
        for raised_at in combinations(range(2, max_hops + 1), num_raised):
            priorities = HopPriorities(raised_at)
            graph = dependencies(priorities)
            if not has_cycle(len(graph.buffers), graph.holding, graph.awaited):
                return priorities
    return None


def routes_to_forbid(
    topology: Topology, routes: Sequence[Route], priorities: HopPriorities = ONE_PRIORITY
) -> tuple[int, ...]:
    """Return the numbers of routes without which the others have no cycle.

    Of each cycle found, the dependency that the fewest routes make is taken away, with them. This
    is a greedy choice, not always the smallest one.
    """
    kept = dict(enumerate(routes))
    while cycle := find_cycle(route_dependencies(topology, list(kept.values()), priorities)):
        channels = [buffer.channel for buffer in cycle]
        turns = set(pairwise([*channels, channels[0]]))
        uses = {number: turns.intersection(pairwise(r.channels)) for number, r in kept.items()}
        num_routes = Counter(turn for used in uses.values() for turn in used)
        rarest = min(turns, key=lambda turn: (num_routes[turn], turn))
        kept = {number: r for number, r in kept.items() if rarest not in uses[number]}
    return tuple(number for number in range(len(routes)) if number not in kept)


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
