"""A list of flows over one fabric: when each ends, and what the links went through."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.networks.link_loads import busiest_channels
from kvfabric.fabric.networks.network import LinkLoad
from kvfabric.fabric.networks.pressure_report import PressureReport, report_pressure
from kvfabric.fabric.routes.load_balancing import LoadBalancer, SubFlow
from kvfabric.perf.handoff import ROCE_FRAME_BYTES, ROCE_PAYLOAD_BYTES
from kvfabric.units import NS_PER_S, ceil_div
from kvfabric.workload.flows_csv import FlowRow

_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """One flow: what was asked, when it ended, and how long it takes alone at line rate.

    ``num_subflows`` is 0 within a server: such a flow uses no link and ends as it starts.
    """

    flow: FlowRow
    end_ns: int
    line_ns: int
    num_subflows: int

    @property
    def fct_ns(self) -> int:
        """Return the flow completion time."""
        return self.end_ns - self.flow.start_ns

    @property
    def slowdown(self) -> float | None:
        """Return the completion time over that at line rate; None within a server."""
        return self.fct_ns / self.line_ns if self.num_subflows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """What a list of flows did.

    Attributes:
        results: in the order of the list.
        window_ns: from the first start to the last end.
        busiest_links: by utilization over the window, busiest first.
        pressure: pauses, victims and queues; None where the engine knows none.
    """

    results: tuple[FlowResult, ...]
    window_ns: int
    busiest_links: tuple[LinkLoad, ...]
    pressure: PressureReport | None


def run_flows(
    topology: Topology,
    balancer: LoadBalancer,
    engine: FlowEngine,
    flows: Sequence[FlowRow],
    paths: Mapping[str, tuple[int, ...]],
) -> FlowRun:
    """Return what flows do on a fabric; 4,160 bytes go over the wire per 4,096 of payload.

    Args:
        topology: the fabric.
        balancer: chooses the paths of flows that have none of their own.
        engine: idle, over the balancer's channels.
        flows: in any order.
        paths: channels by flow id, for flows that name their path.
    """
    runner = _Runner(balancer, engine, paths)
    order = sorted(range(len(flows)), key=lambda i: flows[i].start_ns)
    for start_ns, together in groupby(order, key=lambda i: flows[i].start_ns):
        runner.run_until(start_ns)
        runner.start(start_ns, [(i, flows[i]) for i in together])
    runner.run_until(None)
    results = tuple(
        FlowResult(
            flow=flow,
            end_ns=runner.end_ns[i],
            line_ns=_line_ns(topology, balancer, flow, paths.get(flow.flow_id)),
            num_subflows=runner.num_subflows[i],
        )
        for i, flow in enumerate(flows)
    )
    window_ns = max(runner.end_ns.values()) - min(flow.start_ns for flow in flows)
    return FlowRun(
        results=results,
        window_ns=window_ns,
        busiest_links=tuple(busiest_channels(balancer, engine.carried_bytes(), window_ns, 5)),
        pressure=report_pressure(engine, balancer.channel_name),
    )


class _Runner:
    """Starts flows and notes their ends; a flow ends with the last of its sub-flows."""

    def __init__(
        self, balancer: LoadBalancer, engine: FlowEngine, paths: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._balancer, self._engine, self._paths = balancer, engine, paths
        # by id of the engine: the flow, its part, and whether the balancer chose the path
        self._of_engine: dict[int, tuple[int, SubFlow, bool]] = {}
        self._num_left: dict[int, int] = {}
        self.end_ns: dict[int, int] = {}
        self.num_subflows: dict[int, int] = {}

    def start(self, start_ns: int, flows: Sequence[tuple[int, FlowRow]]) -> None:
        """Start flows of one instant together."""
        owners: list[tuple[int, SubFlow, bool]] = []
        for i, flow in flows:
            path = self._paths.get(flow.flow_id)
            if path is None:
                subflows = self._balancer.route(flow.src, flow.dst, flow.num_bytes, i)
            else:
                subflows = (SubFlow(path, flow.num_bytes),)
            self.num_subflows[i] = self._num_left[i] = len(subflows)
            owners += [(i, subflow, path is None) for subflow in subflows]
            if not subflows:
                self.end_ns[i] = start_ns
        flow_ids = self._engine.start_flows(
            start_ns,
            [subflow.channels for _, subflow, _ in owners],
            [_on_wire(subflow.num_bytes) for _, subflow, _ in owners],
        )
        self._of_engine.update(zip(flow_ids, owners, strict=True))

    def run_until(self, now_ns: int | None) -> None:
        """Note every end by an instant, or all that are left."""
        while (next_ns := self._engine.next_completion_ns()) is not None:
            if now_ns is not None and next_ns > now_ns:
                return
            for flow_id in self._engine.advance(next_ns):
                self._end(flow_id, next_ns)

    def _end(self, flow_id: int, now_ns: int) -> None:
        i, subflow, is_balanced = self._of_engine.pop(flow_id)
        if is_balanced:
            self._balancer.release((subflow,))
        self._num_left[i] -= 1
        if not self._num_left[i]:
            self.end_ns[i] = now_ns


def _line_ns(
    topology: Topology, balancer: LoadBalancer, flow: FlowRow, path: tuple[int, ...] | None
) -> int:
    """Return the time at the rate of the NIC, or of the slowest link of an explicit path."""
    rate_bps: float = topology.nic_rate_bps
    if path is not None:
        rate_bps = min(balancer.channel_capacity_bps[list(path)].tolist())
    return max(1, math.ceil(_on_wire(flow.num_bytes) * _BITS_PER_BYTE * NS_PER_S / rate_bps))


def _on_wire(num_bytes: int) -> int:
    return ceil_div(num_bytes * ROCE_FRAME_BYTES, ROCE_PAYLOAD_BYTES)
