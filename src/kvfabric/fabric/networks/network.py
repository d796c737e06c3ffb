"""A fabric that moves transfers: a load balancer picks paths, a flow engine shares the links."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvfabric.fabric.engines.maxmin_flows import FULL_SOLVE_ABOVE, FlowSet
from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.routes.load_balancing import LoadBalancer
from kvfabric.fabric.routes.policies.spraying import over_real_channels
from kvfabric.fabric.routes.router import Router
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.units import NS_PER_S

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """How busy one channel was: its name, bytes carried and share of its capacity."""

    name: str
    carried_bytes: int
    utilization: float


class FabricNetwork:
    """Implements the ``Network`` port over one topology.

    A transfer is done when its last sub-flow is. Parts between GPUs of one server use no channel
    and are done at once. Sub-flows carry the frames of the payload: ``frame_bytes`` on the wire for
    every ``payload_bytes`` (headers of the transport included).

    The flows of a transfer are a *group* of the engine, so that routing, moving and counting them
    is compiled; ``EngineNetwork`` over ``MaxMinEngine`` is the readable twin. Memory follows the
    transfers under way.

    Does not model propagation delay, switch latency or packets.

    Invariants (checked by ``check_invariants``):
        I1. a channel is loaded by the sub-flows of transfers under way only.
        I2. bytes handed to the engine = bytes of all parts, frames counted (INV-11).
    """

    __slots__ = (
        "_balancer",
        "_ended",
        "_flows",
        "_free_groups",
        "_group_of_transfer",
        "_router",
        "_transfer_of_group",
        "moved_bytes",
        "num_flows",
    )

    def __init__(
        self, balancer: LoadBalancer, *, payload_bytes: int = 1, frame_bytes: int = 1
    ) -> None:
        """Make an idle network that follows the rules of a balancer."""
        self._balancer = balancer
        self._router = Router(balancer.rules, payload_bytes=payload_bytes, frame_bytes=frame_bytes)
        self._flows = FlowSet(balancer.channel_capacity_bps, FULL_SOLVE_ABOVE)
        self._group_of_transfer: dict[int, int] = {}
        self._transfer_of_group: list[int] = []
        self._free_groups: list[int] = []
        self._ended: list[tuple[int, int]] = []  # (instant, transfer id), not yet handed out
        self.moved_bytes = 0
        self.num_flows = 0

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        transfer_id, flows, router = transfer.transfer_id, self._flows, self._router
        assert transfer_id not in self._group_of_transfer, "transfer ids are unique while moving"
        self._run_until(now_ns)
        group = self._free_groups.pop() if self._free_groups else len(self._transfer_of_group)
        num_new, num_bytes = router.route(transfer_id, transfer.parts, group)
        self.moved_bytes += num_bytes
        self.num_flows += num_new
        if group == len(self._transfer_of_group):
            self._transfer_of_group.append(transfer_id)
        if not num_new:
            self._free_groups.append(group)
            self._ended.append((now_ns, transfer_id))
            return
        self._transfer_of_group[group] = transfer_id
        self._group_of_transfer[transfer_id] = group
        flows.start(router.new, router.path, num_new, router.longest_hops)

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop what is left of a transfer; one that has ended is left alone."""
        self._run_until(now_ns)
        self._ended = [ended for ended in self._ended if ended[1] != transfer_id]
        group = self._group_of_transfer.pop(transfer_id, None)
        if group is None:
            return
        self._free_groups.append(group)
        flows = self._flows
        slots = flows.group_slots(group)
        flows.drop(slots)
        self._router.release_slots(flows.tables, slots)

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion, or None when nothing moves."""
        return self._ended[0][0] if self._ended else self._flows.next_ns

    def advance(self, now_ns: int) -> Sequence[int]:
        """Return the transfers done by ``now_ns``, in order of completion."""
        self._run_until(now_ns)
        if not self._ended:
            return ()
        ended, self._ended = self._ended, []
        return [transfer_id for _, transfer_id in ended]

    def _run_until(self, now_ns: int) -> None:
        """Complete what is done by an instant, and note the transfers that have no flow left."""
        flows = self._flows
        num_done, num_ended = flows.run_until(now_ns)
        if not num_done:
            return
        self._router.release(flows.tables, num_done)
        for instant_ns, group in flows.ended_groups(num_ended):
            transfer_id = self._transfer_of_group[group]
            del self._group_of_transfer[transfer_id]
            self._free_groups.append(group)
            self._ended.append((instant_ns, transfer_id))

    def carried_bytes(self) -> FloatArray:
        """Return the bytes on the wire of every channel so far, in the balancer's order of ids."""
        return self._flows.carried_bytes()

    def real_carried_bytes(self) -> FloatArray:
        """Return the same per channel of the topology: pools spread over their channels."""
        return over_real_channels(self._balancer, self._flows.carried_bytes())

    def busiest_links(self, window_ns: int, count: int = 1) -> list[LinkLoad]:
        """Return the most utilized channels over a window, busiest first, ties by channel."""
        if window_ns <= 0:
            return []
        carried = self._flows.carried_bytes()
        capacity_bytes = self._balancer.channel_capacity_bps * (
            window_ns / NS_PER_S / BITS_PER_BYTE
        )
        share = carried / capacity_bytes
        order = np.argsort(-share, kind="stable")[:count].tolist()
        return [
            LinkLoad(
                self._balancer.channel_name(channel), round(carried[channel]), float(share[channel])
            )
            for channel in order
        ]

    def check_invariants(self) -> None:
        """Assert I1 and those of engine (INV-12) and router."""
        self._flows.check_invariants()
        self._router.check_invariants()
        moving = set(self._group_of_transfer.values())
        assert set(self._flows.active_groups()) == moving, "I1"
        assert self._flows.num_active or not self._router.num_loaded_channels, "I1"
