"""Plays the flows of a collective over a fabric, in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.fabric.routes.load_balancing import LoadBalancer, SubFlow
from kvfabric.fabric.traffic.collectives import CollectiveFlow


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """When the flows of a collective ended.

    Attributes:
        start_ns: of the collective.
        end_ns: of each flow.
        network_bytes: what crossed the fabric; flows within a server do not.
    """

    start_ns: int
    end_ns: tuple[int, ...]
    network_bytes: int

    @property
    def duration_ns(self) -> int:
        """Return the time from the start to the end of the last flow."""
        return max(self.end_ns, default=self.start_ns) - self.start_ns


def run_collective(
    flows: Sequence[CollectiveFlow],
    balancer: LoadBalancer,
    engine: FlowEngine,
    *,
    start_ns: int = 0,
    first_key: int = 0,
) -> CollectiveResult:
    """Return when each flow ends: it starts at the instant at which the last one before it ended.

    Messages within a server, and of no bytes, take no time. Nothing else happens on the engine
    meanwhile, except what was started before.

    Args:
        flows: of the collective; a flow waits only for flows before it.
        balancer: finds the paths.
        engine: shares the links.
        start_ns: not before the engine's last instant.
        first_key: flow i is the connection ``first_key + i`` to the balancer.

    Raises:
        ConfigError: a flow waits for itself or for one after it.
    """
    _check_order(flows)
    run = _Run(flows, balancer, engine, first_key)
    run.start([i for i, flow in enumerate(flows) if not flow.after], start_ns)
    while run.num_moving:
        now_ns = engine.next_completion_ns()
        assert now_ns is not None, "flows that move end"
        run.start(run.ended(now_ns), now_ns)
    assert all(end >= start_ns for end in run.end_ns), "every flow has ended"
    return CollectiveResult(start_ns, tuple(run.end_ns), run.network_bytes)


class _Run:
    def __init__(
        self,
        flows: Sequence[CollectiveFlow],
        balancer: LoadBalancer,
        engine: FlowEngine,
        first_key: int,
    ) -> None:
        self._flows, self._balancer, self._engine = flows, balancer, engine
        self._first_key = first_key
        self._num_awaited = [len(set(flow.after)) for flow in flows]
        self._next: list[list[int]] = [[] for _ in flows]
        for number, flow in enumerate(flows):
            for before in set(flow.after):
                self._next[before].append(number)
        self._parts: dict[int, tuple[SubFlow, ...]] = {}
        self._num_parts: dict[int, int] = {}
        self._flow_of: dict[int, int] = {}
        self.end_ns = [-1] * len(flows)
        self.network_bytes = 0

    @property
    def num_moving(self) -> int:
        """Return the flows under way."""
        return len(self._parts)

    def start(self, ready: list[int], now_ns: int) -> None:
        """Start flows, and those that follow at once on flows that take no time."""
        starting: list[tuple[int, SubFlow]] = []
        for number in ready:  # grows while it is read
            flow = self._flows[number]
            parts = self._balancer.route(
                flow.src, flow.dst, flow.num_bytes, self._first_key + number
            )
            if not parts:
                ready += self._end(number, now_ns)
                continue
            self._parts[number], self._num_parts[number] = parts, len(parts)
            self.network_bytes += flow.num_bytes
            starting += [(number, part) for part in parts]
        if starting:
            ids = self._engine.start_flows(
                now_ns,
                [part.channels for _, part in starting],
                [part.num_bytes for _, part in starting],
            )
            self._flow_of |= {
                flow_id: number for flow_id, (number, _) in zip(ids, starting, strict=True)
            }

    def ended(self, now_ns: int) -> list[int]:
        """Take what has ended by an instant; return the flows that may start now, in order."""
        ready: list[int] = []
        for flow_id in self._engine.advance(now_ns):
            number = self._flow_of.pop(flow_id, None)
            if number is None:  # not of this collective
                continue
            self._num_parts[number] -= 1
            if not self._num_parts[number]:
                del self._num_parts[number]
                self._balancer.release(self._parts.pop(number))
                ready += self._end(number, now_ns)
        return sorted(ready)

    def _end(self, number: int, now_ns: int) -> list[int]:
        self.end_ns[number] = now_ns
        ready = []
        for later in self._next[number]:
            self._num_awaited[later] -= 1
            if not self._num_awaited[later]:
                ready.append(later)
        return ready


def _check_order(flows: Sequence[CollectiveFlow]) -> None:
    for number, flow in enumerate(flows):
        if any(not 0 <= before < number for before in flow.after):
            raise ConfigError(
                f"flow {number} waits for flows {list(flow.after)}",
                hint="Write places of flows that stand before it",
            )
