"""Transfers over a fabric under any flow engine: a load balancer picks paths, the engine moves."""

from collections.abc import Sequence

from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.networks.link_loads import ChannelLoads, busiest_channels, channel_loads
from kvfabric.fabric.networks.network import LinkLoad
from kvfabric.fabric.networks.pressure_report import PressureReport, report_pressure
from kvfabric.fabric.routes.load_balancing import LoadBalancer, SubFlow
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.units import ceil_div


class EngineNetwork:
    """Implements the ``Network`` port over any engine; over max-min, the twin of ``FabricNetwork``.

    A transfer is done when its last sub-flow is; parts within a server use no channel and are done
    at once. Memory follows the transfers under way.

    Invariants (checked by ``check_invariants``):
        I1. the engine's active flows are the sub-flows of transfers under way.
    """

    def __init__(
        self,
        balancer: LoadBalancer,
        engine: FlowEngine,
        *,
        payload_bytes: int = 1,
        frame_bytes: int = 1,
    ) -> None:
        """Make an idle network.

        Args:
            balancer: picks the paths.
            engine: idle, over the balancer's channels.
            payload_bytes: carried by a frame.
            frame_bytes: on the wire for it.
        """
        self._balancer, self._engine = balancer, engine
        self._frame = (payload_bytes, frame_bytes)
        self._moving: dict[int, dict[int, SubFlow]] = {}  # by transfer, then by flow
        self._transfer_of_flow: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []  # (instant, transfer id), not yet handed out
        self._now_ns = -1
        self.moved_bytes = 0
        self.num_flows = 0

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        assert transfer.transfer_id not in self._moving, "transfer ids are unique while moving"
        self._run_until(now_ns)
        self.moved_bytes += transfer.num_bytes
        subflows = [
            subflow
            for rank, part in enumerate(transfer.parts)
            for subflow in self._balancer.route(
                part.src_gpu, part.dst_gpu, part.num_bytes, transfer.transfer_id << 16 | rank
            )
        ]
        if not subflows:
            self._ended.append((now_ns, transfer.transfer_id))
            return
        self.num_flows += len(subflows)
        payload, frame = self._frame
        flow_ids = self._engine.start_flows(
            now_ns,
            [subflow.channels for subflow in subflows],
            [ceil_div(subflow.num_bytes * frame, payload) for subflow in subflows],
        )
        self._moving[transfer.transfer_id] = dict(zip(flow_ids, subflows, strict=True))
        self._transfer_of_flow.update(dict.fromkeys(flow_ids, transfer.transfer_id))

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop what is left of a transfer; one that has ended is left alone."""
        self._run_until(now_ns)
        self._ended = [ended for ended in self._ended if ended[1] != transfer_id]
        moving = self._moving.pop(transfer_id, {})
        self._engine.cancel_flows(now_ns, list(moving))
        for flow_id, subflow in moving.items():
            del self._transfer_of_flow[flow_id]
            self._balancer.release((subflow,))

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion of a flow, or None when nothing moves."""
        return self._ended[0][0] if self._ended else self._engine.next_completion_ns()

    def advance(self, now_ns: int) -> Sequence[int]:
        """Return the transfers done by ``now_ns``, in order of completion."""
        self._run_until(now_ns)
        ended, self._ended = self._ended, []
        return [transfer_id for _, transfer_id in ended]

    def _run_until(self, now_ns: int) -> None:
        if now_ns == self._now_ns:  # to ask the engine again between starts could cost much
            return
        self._now_ns = now_ns
        while self._transfer_of_flow:
            next_ns = self._engine.next_completion_ns()
            if next_ns is None or next_ns > now_ns:
                break
            for flow_id in self._engine.advance(next_ns):
                self._end_flow(flow_id, next_ns)
        self._engine.advance(now_ns)

    def _end_flow(self, flow_id: int, now_ns: int) -> None:
        transfer_id = self._transfer_of_flow.pop(flow_id)
        moving = self._moving[transfer_id]
        self._balancer.release((moving.pop(flow_id),))
        if not moving:
            del self._moving[transfer_id]
            self._ended.append((now_ns, transfer_id))

    def carried_bytes(self) -> FloatArray:
        """Return the bytes on the wire of every channel so far, in the balancer's order of ids."""
        return self._engine.carried_bytes()

    def channel_loads(self) -> ChannelLoads:
        """Return bytes, pauses and queues of every channel of the topology so far."""
        return channel_loads(self._balancer, self._engine)

    def pressure(self) -> PressureReport | None:
        """Return pauses, victims and queues so far; None if the engine knows none."""
        return report_pressure(self._engine, self._balancer.channel_name)

    def busiest_links(self, window_ns: int, count: int = 1) -> list[LinkLoad]:
        """Return the most utilized channels over a window, busiest first, ties by channel."""
        return busiest_channels(self._balancer, self._engine.carried_bytes(), window_ns, count)

    def check_invariants(self) -> None:
        """Assert I1 and those of the engine."""
        self._engine.check_invariants()
        moving = {flow_id for flows in self._moving.values() for flow_id in flows}
        assert moving == set(self._transfer_of_flow), "I1"
        assert self._engine.num_active == len(moving), "I1"
