"""A fabric that moves transfers: a load balancer picks paths, a flow engine shares the links."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.fabric.load_balancing import LoadBalancer, SubFlow
from kvfabric.fabric.maxmin import MaxMinEngine
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.units import NS_PER_S, ceil_div

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """How busy one channel was: its name, bytes carried and share of its capacity."""

    name: str
    carried_bytes: int
    utilization: float


@dataclass(slots=True, eq=False)
class _Moving:
    """A transfer under way: its sub-flows by flow id, and what goes through no fabric channel."""

    flows: dict[int, SubFlow] = field(default_factory=dict[int, SubFlow])


class FabricNetwork:
    """Implements the ``Network`` port over one topology.

    A transfer is done when its last sub-flow is. Parts between GPUs of one server use no channel
    and are done at once. Sub-flows carry the frames of the payload: ``frame_bytes`` on the wire for
    every ``payload_bytes`` (headers of the transport included).

    Does not model propagation delay, switch latency or packets.

    Invariants:
        I1. a channel is loaded by the sub-flows of transfers under way only.
        I2. bytes handed to the engine = bytes of all parts, frames counted (INV-11).
    """

    __slots__ = (
        "_balancer",
        "_done_at_once",
        "_engine",
        "_frame",
        "_moving",
        "_transfer_of_flow",
        "moved_bytes",
        "num_flows",
    )

    def __init__(
        self, balancer: LoadBalancer, *, payload_bytes: int = 1, frame_bytes: int = 1
    ) -> None:
        """Make an idle network over the balancer's channels."""
        self._balancer = balancer
        self._engine = MaxMinEngine(balancer.channel_capacity_bps)
        self._frame = (payload_bytes, frame_bytes)
        self._moving: dict[int, _Moving] = {}
        self._transfer_of_flow: dict[int, int] = {}
        self._done_at_once: list[tuple[int, int]] = []
        self.moved_bytes = 0
        self.num_flows = 0

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        assert transfer.transfer_id not in self._moving, "transfer ids are unique while moving"
        subflows = [
            subflow
            for rank, part in enumerate(transfer.parts)
            for subflow in self._balancer.route(
                part.src_gpu, part.dst_gpu, part.num_bytes, self._flow_key(transfer, rank)
            )
        ]
        self.moved_bytes += transfer.num_bytes
        self.num_flows += len(subflows)
        if not subflows:
            self._done_at_once.append((now_ns, transfer.transfer_id))
            return
        payload, frame = self._frame
        flow_ids = self._engine.start_flows(
            now_ns,
            [subflow.channels for subflow in subflows],
            [ceil_div(subflow.num_bytes * frame, payload) for subflow in subflows],
        )
        self._moving[transfer.transfer_id] = _Moving(dict(zip(flow_ids, subflows, strict=True)))
        self._transfer_of_flow.update(dict.fromkeys(flow_ids, transfer.transfer_id))

    @staticmethod
    def _flow_key(transfer: TransferPlan, rank: int) -> int:
        """Return what tells a part from all others: connections are set up per request."""
        return transfer.transfer_id << 16 | rank

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop what is left of a transfer; one that has ended is left alone."""
        self._done_at_once = [done for done in self._done_at_once if done[1] != transfer_id]
        moving = self._moving.pop(transfer_id, None)
        if moving is None:
            return
        self._engine.cancel_flows(now_ns, list(moving.flows))
        for flow_id, subflow in moving.flows.items():
            del self._transfer_of_flow[flow_id]
            self._balancer.release((subflow,))

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion, or None when nothing moves."""
        if self._done_at_once:
            return self._done_at_once[0][0]
        return self._engine.next_completion_ns()

    def advance(self, now_ns: int) -> Sequence[int]:
        """Return the transfers done by ``now_ns``, in order of completion."""
        done = [transfer_id for _, transfer_id in self._done_at_once]
        self._done_at_once = []
        next_ns = self._engine.next_completion_ns()
        if next_ns is None or next_ns > now_ns:
            return done
        for flow_id in self._engine.advance(now_ns):
            transfer_id = self._transfer_of_flow.pop(flow_id, None)
            if transfer_id is None:
                continue
            moving = self._moving[transfer_id]
            self._balancer.release((moving.flows.pop(flow_id),))
            if not moving.flows:
                del self._moving[transfer_id]
                done.append(transfer_id)
        return done

    def busiest_links(self, window_ns: int, count: int = 1) -> list[LinkLoad]:
        """Return the most utilized channels over a window, busiest first, ties by channel."""
        if window_ns <= 0:
            return []
        carried = self._engine.carried_bytes()
        capacity_bytes = self._balancer.channel_capacity_bps * (
            window_ns / NS_PER_S / BITS_PER_BYTE
        )
        share = carried / capacity_bytes
        order = sorted(range(len(share)), key=lambda channel: (-share[channel], channel))[:count]
        return [
            LinkLoad(
                self._balancer.channel_name(channel), round(carried[channel]), float(share[channel])
            )
            for channel in order
        ]

    def check_invariants(self) -> None:
        """Assert I1 and those of the engine (INV-12)."""
        self._engine.check_invariants()
        known = {flow_id for moving in self._moving.values() for flow_id in moving.flows}
        assert known == self._transfer_of_flow.keys(), "I1"
