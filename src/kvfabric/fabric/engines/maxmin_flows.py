"""Flows under way at max-min fair rates: the tables and their compiled kernels behind one handle.

Knows slots and groups of flows, no ids; ``MaxMinEngine`` and ``FabricNetwork`` stand on it. The
kernels are imported (and compiled, once per machine) only when the first handle is made.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from kvfabric.fabric.engines.maxmin_tables import (
    NEW_FLOW,
    Floats,
    Indices,
    Ints,
    Records,
    build_tables,
    grow_tables,
)

NO_SLOTS = np.zeros(0, np.int64)
NO_FLOWS = (np.zeros(0, NEW_FLOW), np.zeros(0, np.int32), 0)

# Share of the active flows above which solving all at once costs less than growing the set. It
# moves only the cost, never a result.
FULL_SOLVE_ABOVE = 1 / 3
_FIRST_SLOTS = 64
_FIRST_STRIDE = 8


def load_kernel() -> ModuleType:
    """Return the kernels, imported late: only who runs flows pays half a second for numba."""
    from kvfabric.fabric.engines import maxmin_kernel  # noqa: PLC0415 — a late import

    return maxmin_kernel


def entry_point(function: Any, *arguments: object) -> Callable[..., Any]:
    """Return the machine code of a kernel for arguments of the types of these.

    Calling it spares numba's look-up of the types, most of the cost of a short call. Arguments of
    other types must never be passed to it.
    """
    import numba  # noqa: PLC0415 — as for the kernels

    type_of: Callable[[object], object] = numba.typeof
    code: Callable[..., Any] = function.compile(tuple(map(type_of, arguments)))
    return code


class FlowSet:
    """All flows over a set of channels; time only advances when told to.

    Invariants (checked by ``check_invariants``):
        I1. on every channel the rates sum to at most the capacity.
        I2. every flow has a bottleneck: a saturated channel on which no flow is faster.
        I3. every slot is either free or holds exactly one active flow.
        I4. in the heap of end instants no flow comes before its parent.
        I5. a group counts its active flows.

    Attributes:
        tables: the state; replaced when it grows.
        next_ns: whole ns at which the next flow ends if nothing else happens; None when idle.
        num_active: flows under way.
        num_started: flows ever started; the next one gets this serial number.
    """

    __slots__ = ("_now_ns", "_step", "next_ns", "num_active", "num_started", "tables")

    def __init__(self, channel_capacity_bps: Floats | Ints, full_solve_above: float) -> None:
        """Set up an idle set; capacities in bit/s, all above 0."""
        capacity_bps = np.asarray(channel_capacity_bps, np.float64)
        assert np.all(capacity_bps > 0), "every channel needs a capacity above 0"
        self.tables = build_tables(
            capacity_bps,
            num_slots=_FIRST_SLOTS,
            stride=_FIRST_STRIDE,
            full_solve_above=full_solve_above,
        )
        self._step = entry_point(load_kernel().step, self.tables, 0.0, NO_SLOTS, *NO_FLOWS)
        self._now_ns = 0
        self.next_ns: int | None = None
        self.num_active = 0
        self.num_started = 0

    def run_until(self, now_ns: int) -> tuple[int, int]:
        """Complete the flows that end by ``now_ns``; return how many, and how many groups ended.

        The first entries of ``tables.done`` and ``tables.ended`` list them.
        """
        assert now_ns >= self._now_ns, f"time cannot go back from {self._now_ns} to {now_ns} ns"
        self._now_ns = now_ns
        if self.next_ns is None or self.next_ns > now_ns:
            return 0, 0
        num_done, num_ended, next_ns = self._step(self.tables, float(now_ns), NO_SLOTS, *NO_FLOWS)
        self.num_active -= num_done
        self.next_ns = next_ns if self.num_active else None
        return num_done, num_ended

    def start(self, new: Records, path_channels: Indices, num_new: int, num_hops: int) -> None:
        """Start flows together at the instant ``run_until`` has come to, with one solve.

        Args:
            new: the flows, as ``NEW_FLOW``; paths of one channel or more, none twice.
            path_channels: what their paths point into.
            num_new: how many of ``new``, at least one.
            num_hops: channels of the longest path.
        """
        num_slots = len(self.tables.flows)
        is_full = self.num_active + num_new > num_slots
        if is_full or num_hops * num_slots > len(self.tables.hops):
            self._grow(num_new, num_hops)
        _, _, self.next_ns = self._step(
            self.tables, float(self._now_ns), NO_SLOTS, new, path_channels, num_new
        )
        self.num_active += num_new
        self.num_started += num_new

    def drop(self, slots: Ints) -> None:
        """Drop flows together at the instant ``run_until`` has come to, with one solve."""
        _, _, next_ns = self._step(self.tables, float(self._now_ns), slots, *NO_FLOWS)
        self.num_active -= len(slots)
        self.next_ns = next_ns if self.num_active else None

    def active_slots(self) -> Ints:
        """Return the slots of the flows under way, in no order."""
        slots: Ints = self.tables.heap["item"][: self.num_active]
        return slots

    def active_groups(self) -> list[int]:
        """Return the groups that have a flow under way."""
        groups: list[int] = np.unique(self.tables.flows["group"][self.active_slots()]).tolist()
        return groups

    def group_slots(self, group: int) -> Ints:
        """Return the slots of the flows of a group that are under way, in order of start."""
        slots = self.active_slots()
        slots = slots[self.tables.flows["group"][slots] == group]
        ordered: Ints = slots[np.argsort(self.tables.flows["serial"][slots])]
        return ordered

    def ended_groups(self, num_ended: int) -> list[tuple[int, int]]:
        """Return instant and number of the groups that ``run_until`` ended, in order."""
        ended = self.tables.ended
        return [(ended.item(2 * i), ended.item(2 * i + 1)) for i in range(num_ended)]

    def carried_bytes(self) -> Floats:
        """Return the bytes each channel has carried up to the last instant told."""
        carried: Floats = self.tables.channels["carried_bytes"].copy()
        flows = self.tables.flows[self.active_slots()]
        # an event may lie a rounding error after the whole ns
        clock_ns = max(float(self._now_ns), self.tables.state["clock_ns"].item(0))
        left = flows["remaining_bytes"] - flows["rate"] * (clock_ns - flows["updated_ns"])
        sent = flows["size_bytes"] - np.maximum(left, 0.0)
        channels, flow_of_hop = self._active_hops()
        np.add.at(carried, channels, sent[flow_of_hop])
        return carried

    def check_invariants(self) -> None:
        """Assert I1 to I5; I1 and I2 are INV-12 of the project."""
        slots, tables = self.active_slots(), self.tables
        unused = tables.unused[: tables.num_slots - len(slots)].tolist()
        assert tables.state["num_active"].item(0) == len(slots), "I3"
        assert sorted([*slots.tolist(), *unused]) == list(range(tables.num_slots)), "I3"
        end_ns = tables.heap["key"][: len(slots)]
        assert np.all(end_ns[(np.arange(1, len(slots)) - 1) // 2] <= end_ns[1:]), "I4"
        groups = tables.flows["group"][slots]
        left = np.bincount(groups[groups >= 0], minlength=tables.num_slots)
        assert np.array_equal(left, tables.group_left), "I5"
        self._check_fairness(slots)

    def _check_fairness(self, slots: Ints) -> None:
        rates, capacity = self.tables.flows["rate"][slots], self.tables.channels["capacity"]
        channels, flow_of_hop = self._active_hops()
        load, fastest = np.zeros(len(capacity)), np.zeros(len(capacity))
        np.add.at(load, channels, rates[flow_of_hop])
        np.maximum.at(fastest, channels, rates[flow_of_hop])
        assert np.all(load <= capacity * (1 + 1e-9)), "I1"
        is_saturated = load >= capacity * (1 - 1e-9)
        is_fastest = rates[flow_of_hop] >= fastest[channels] * (1 - 1e-9)
        held = np.unique(flow_of_hop[is_saturated[channels] & is_fastest])
        assert len(held) == len(slots), "I2"

    def _grow(self, num_new: int, num_hops: int) -> None:
        """Make room for more flows and longer paths, by doubling."""
        num_slots, stride = self.tables.num_slots, self.tables.stride
        while num_slots < self.num_active + num_new:
            num_slots *= 2
        while stride < num_hops:
            stride *= 2
        self.tables = grow_tables(self.tables, num_slots=num_slots, stride=stride)

    def _active_hops(self) -> tuple[Indices, Ints]:
        """Return channel and flow (as a place in ``active_slots``) of every hop in use."""
        slots = self.active_slots()
        rows = self.tables.hops["channel"].reshape(-1, self.tables.stride)[slots]
        num_hops = self.tables.flows["num_hops"][slots]
        is_used = np.arange(self.tables.stride) < num_hops[:, None]
        return rows[is_used], np.repeat(np.arange(len(slots)), num_hops)
