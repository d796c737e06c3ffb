"""Turns the messages of a transfer into flows, compiled: the fast form of every load balancer."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np

from kvfabric.fabric.engines.maxmin_flows import NO_FLOWS, entry_point
from kvfabric.fabric.engines.maxmin_tables import (
    DONE,
    FLOW,
    HOP,
    NEW_FLOW,
    FlowTables,
    Indices,
    Ints,
    Records,
)
from kvfabric.fabric.measured.measures import UNREACHABLE
from kvfabric.fabric.routes.routing_tables import PathRules, Policy, build_routing, with_more_items
from kvfabric.protocol.transfer import RankTransfer

_FIRST_MESSAGES = 8


@cache
def _packing(num_integers: int) -> Struct:
    """Return what writes so many 64-bit integers of this machine into a buffer."""
    return Struct(f"{num_integers}q")


class Router:
    """Routes transfers by the rules of one policy and remembers the load it has assigned.

    Invariants (checked by ``check_invariants``):
        I1. no load is negative.

    Attributes:
        new: the flows of the last transfer, as ``NEW_FLOW``.
        path: what their paths point into.
        longest_hops: channels of the longest of these paths.
    """

    __slots__ = (
        "_is_assigning",
        "_message_bytes",
        "_messages",
        "_most_hops",
        "_num_parts",
        "_release",
        "_route",
        "_tables",
        "longest_hops",
        "new",
        "path",
    )

    def __init__(self, rules: PathRules, *, payload_bytes: int = 1, frame_bytes: int = 1) -> None:
        """Start without load; ``frame_bytes`` go over the wire per ``payload_bytes``."""
        from kvfabric.fabric.routes import routing_kernel  # noqa: PLC0415 — late, as the max-min kernels

        self._tables = build_routing(rules, payload_bytes, frame_bytes)
        self._is_assigning = rules.policy is Policy.ASSIGNED
        self._num_parts = rules.paths.topology.ports_per_nic * rules.queue_pairs
        distances = rules.paths.distances
        self._most_hops = 2 + int(distances[distances != UNREACHABLE].max(initial=0))
        self._make_room(_FIRST_MESSAGES)
        self._route = entry_point(
            routing_kernel.route, self._tables, self._messages, 0, 0, 0, 0, *NO_FLOWS[:2]
        )
        self._release: Callable[..., Any] = routing_kernel.release
        if self._is_assigning:
            flows = np.zeros(0, FLOW), np.zeros(0, HOP), np.zeros(0, DONE), 0
            self._release = entry_point(routing_kernel.release, self._tables, *flows)

    def route(self, transfer_id: int, parts: Sequence[RankTransfer], group: int) -> tuple[int, int]:
        """Fill ``new`` with the flows of a transfer.

        Args:
            transfer_id: tells its connections from those of other transfers.
            parts: its messages.
            group: the group its flows belong to.

        Returns:
            The number of flows and the bytes of all messages. Messages within a server have bytes
            but no flows.
        """
        num_messages = len(parts)
        if 3 * num_messages > len(self._messages):
            self._make_room(num_messages)
        _packing(3 * num_messages).pack_into(self._message_bytes, 0, *chain.from_iterable(parts))
        num_routed = num_new = 0
        while num_routed < num_messages:
            num_routed, num_new, self.longest_hops = self._route(
                self._tables,
                self._messages,
                num_routed,
                num_messages,
                transfer_id,
                group,
                self.new,
                self.path,
            )
            if num_routed < num_messages:
                self._tables = with_more_items(self._tables)
        return num_new, sum([part.num_bytes for part in parts])

    def release(self, flows: FlowTables, num_done: int) -> None:
        """Take the load of the first flows of ``flows.done`` away, in that order."""
        if self._is_assigning and num_done:
            self._release(self._tables, flows.flows, flows.hops, flows.done, num_done)

    def release_slots(self, flows: FlowTables, slots: Ints) -> None:
        """Take the load of the flows that were in some slots away, in that order."""
        done = np.zeros(len(slots), DONE)
        done["slot"] = slots
        self.release(flows._replace(done=done), len(slots))

    @property
    def num_loaded_channels(self) -> int:
        """Return the channels that carry assigned load; 0 once everything was released."""
        return int(np.count_nonzero(self._tables.channels["assigned_bytes"]))

    def check_invariants(self) -> None:
        """Assert I1."""
        assert self._tables.channels["assigned_bytes"].min(initial=0) >= 0, "I1"

    def _make_room(self, num_messages: int) -> None:
        num_flows = num_messages * self._num_parts
        self._messages: Ints = np.zeros(3 * num_messages, np.int64)
        self._message_bytes = memoryview(self._messages.data)
        self.new: Records = np.zeros(num_flows, NEW_FLOW)
        self.path: Indices = np.zeros(num_flows * self._most_hops, np.int32)
        self.longest_hops = 0
