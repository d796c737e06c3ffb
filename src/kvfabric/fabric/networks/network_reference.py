"""Transfers over a fabric in plain Python: the readable twin of ``network``, and its oracle.

It keeps every sub-flow as an object, and works with any ``LoadBalancer``.
"""

from collections.abc import Sequence

from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.routes.load_balancing import LoadBalancer, SubFlow
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.units import ceil_div


class ReferenceNetwork:
    """Does what ``FabricNetwork`` does, one sub-flow at a time."""

    def __init__(
        self, balancer: LoadBalancer, *, payload_bytes: int = 1, frame_bytes: int = 1
    ) -> None:
        """Make an idle network over the balancer's channels."""
        self._balancer = balancer
        self._frame = (payload_bytes, frame_bytes)
        self._moving: dict[int, dict[int, SubFlow]] = {}  # by transfer, then by flow
        self._transfer_of_flow: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        self.engine = MaxMinEngine(balancer.channel_capacity_bps)

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        self._run_until(now_ns)
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
        payload, frame = self._frame
        flow_ids = self.engine.start_flows(
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
        self.engine.cancel_flows(now_ns, list(moving))
        for flow_id, subflow in moving.items():
            del self._transfer_of_flow[flow_id]
            self._balancer.release((subflow,))

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion, or None when nothing moves."""
        return self._ended[0][0] if self._ended else self.engine.next_completion_ns()

    def advance(self, now_ns: int) -> Sequence[int]:
        """Return the transfers done by ``now_ns``, in order of completion."""
        self._run_until(now_ns)
        ended, self._ended = self._ended, []
        return [transfer_id for _, transfer_id in ended]

    def _run_until(self, now_ns: int) -> None:
        while (next_ns := self.engine.next_completion_ns()) is not None and next_ns <= now_ns:
            for flow_id in self.engine.advance(next_ns):
                transfer_id = self._transfer_of_flow.pop(flow_id)
                moving = self._moving[transfer_id]
                self._balancer.release((moving.pop(flow_id),))
                if not moving:
                    del self._moving[transfer_id]
                    self._ended.append((next_ns, transfer_id))

    def check_invariants(self) -> None:
        """Assert those of the engine (INV-12)."""
        self.engine.check_invariants()
