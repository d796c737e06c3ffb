"""Flows under way under priority flow control: the tables and their compiled kernels, one handle.

Knows slots of flows, no ids; ``PfcEngine`` stands on it. The kernels are imported (and compiled,
once per machine) only when the first handle is made.
"""

from array import array
from collections.abc import Sequence
from struct import Struct
from types import ModuleType

import numpy as np

from kvfabric.fabric.engines.maxmin_flows import entry_point
from kvfabric.fabric.engines.maxmin_tables import Floats, Indices, Ints
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_tables import NEW_FLOW, build_tables, grow_tables

Ended = list[tuple[int, int]]  # (whole ns, serial number) of flows

_NEW_FLOW = Struct("=dqii")  # as ``NEW_FLOW``; writes a record in a fifth of numpy's time
_FIRST_SLOTS = 64
_FIRST_STRIDE = 8


def load_pfc_kernel() -> ModuleType:
    """Return the kernels, imported late: only who runs flows pays for numba."""
    from kvfabric.fabric.engines import pfc_kernel  # noqa: PLC0415 — a late import

    return pfc_kernel


class UnsoundFlowsError(Exception):
    """New flows of a size, a priority or a path that cannot be."""


class PfcFlowSet:
    """All flows over a set of channels; time only advances when told to.

    Invariants (checked by ``check_invariants``):
        I1. on every channel the rates sum to at most the capacity.
        I2. every slot is either free or holds exactly one active flow, which has a rate above 0.
        I3. in the heap of end instants no flow comes before its parent.
        I4. a channel counts the flows that cross it, and sums what their sources offer.
        I5. no price is below 0, and an empty queue has none.

    Attributes:
        tables: the state; replaced when it grows.
        next_ns: whole ns at which the next flow ends if nothing else happens; None when idle.
        num_active: flows under way.
        num_started: flows ever started; the next one gets this serial number.
    """

    __slots__ = (
        "_new_bytes",
        "_now_ns",
        "_step",
        "_told",
        "next_ns",
        "num_active",
        "num_started",
        "tables",
    )

    def __init__(
        self, channel_capacity_bps: Floats | Ints, params: PfcParams, *, cut: float, max_sweeps: int
    ) -> None:
        """Set up an idle set; capacities in bit/s, all above 0."""
        capacity_bps = np.asarray(channel_capacity_bps, np.float64)
        assert np.all(capacity_bps > 0), "every channel needs a capacity above 0"
        self.tables = build_tables(
            capacity_bps,
            params,
            num_slots=_FIRST_SLOTS,
            stride=_FIRST_STRIDE,
            cut=cut,
            max_iterations=max_sweeps,
        )
        assert NEW_FLOW.itemsize == _NEW_FLOW.size, "one layout"
        self._new_bytes, self._told = self._buffers()
        self._step = entry_point(load_pfc_kernel().step, self.tables, 0.0, 0, 0, 0)
        self._now_ns = 0
        self.next_ns: int | None = None
        self.num_active = 0
        self.num_started = 0

    def run_until(self, now_ns: int) -> Ended:
        """Complete the flows that end by ``now_ns``; return them by whole ns, then by start."""
        assert now_ns >= self._now_ns, f"time cannot go back from {self._now_ns} to {now_ns} ns"
        if self.next_ns is None or self.next_ns > now_ns:
            self._now_ns = now_ns
            return []
        return self._go(now_ns, 0, 0)

    def start(
        self,
        now_ns: int,
        paths: Sequence[Sequence[int]],
        sizes_bytes: Sequence[int],
        priorities: Sequence[int],
    ) -> Ended:
        """Start flows together at an instant, with one solve, after those that end by then.

        Returns:
            What ended, as ``run_until`` does.

        Raises:
            UnsoundFlowsError: a size, priority or path that cannot be; nothing has changed.
        """
        assert now_ns >= self._now_ns, f"time cannot go back from {self._now_ns} to {now_ns} ns"
        num_new = len(paths)
        self._make_room(num_new, max(map(len, paths)))
        told, new_bytes, record = self._told, self._new_bytes, _NEW_FLOW
        first_hop = at = 0
        for path, size_bytes, priority in zip(paths, sizes_bytes, priorities, strict=True):
            num_hops = len(path)
            record.pack_into(new_bytes, at, size_bytes, first_hop, num_hops, priority)
            told[first_hop : first_hop + num_hops] = array("i", path)
            first_hop += num_hops
            at += record.size
        return self._go(now_ns, 0, num_new)

    def drop(self, slots: Sequence[int]) -> None:
        """Drop flows together at the instant ``run_until`` has come to, with one solve."""
        self._told[: len(slots)] = array("i", slots)
        self._go(self._now_ns, len(slots), 0)

    def _go(self, now_ns: int, num_dropped: int, num_new: int) -> Ended:
        """Come to an instant, drop and start what is told; return what ended before."""
        num_done, next_ns, whole_ns, serial = self._step(
            self.tables, float(now_ns), num_dropped, 0, num_new
        )
        if num_done < 0:
            raise UnsoundFlowsError
        self._now_ns = now_ns
        self.num_active += num_new - num_dropped - num_done
        self.num_started += num_new
        self.next_ns = next_ns if next_ns >= 0 else None
        if num_done == 0:
            return []
        if num_done == 1:
            return [(whole_ns, serial)]
        done = self.tables.done[:num_done]
        return list(zip(done["whole_ns"].tolist(), done["serial"].tolist(), strict=True))

    def _make_room(self, num_new: int, num_hops: int) -> None:
        """Make room for more flows and longer paths, by doubling."""
        num_slots, stride = self.tables.num_slots, self.tables.stride
        if self.num_active + num_new <= num_slots and num_hops <= stride:
            return
        while num_slots < self.num_active + num_new:
            num_slots *= 2
        while stride < num_hops:
            stride *= 2
        self.tables = grow_tables(self.tables, num_slots=num_slots, stride=stride)
        self._new_bytes, self._told = self._buffers()

    def _buffers(self) -> tuple[memoryview, memoryview]:
        """Return ``new`` and ``told`` as memory, which takes less time to write to."""
        return self.tables.new.view(np.uint8).data, self.tables.told.data

    def active_slots(self) -> Ints:
        """Return the slots of the flows under way, in no order."""
        slots: Ints = self.tables.heap["item"][: self.num_active]
        return slots

    def carried_bytes(self) -> Floats:
        """Return the bytes each channel has carried up to the last instant told."""
        carried: Floats = self.tables.channels["carried_bytes"].copy()
        flows = self.tables.flows[self.active_slots()]
        left = flows["remaining_bytes"] - flows["rate"] * (self._clock_ns() - flows["updated_ns"])
        sent = flows["size_bytes"] - np.maximum(left, 0.0)
        channels, flow_of_hop = self._active_hops()
        np.add.at(carried, channels, sent[flow_of_hop])
        return carried

    def paused_ns(self) -> Floats:
        """Return how long each channel's sender was paused, summed over its priorities."""
        queues = self.tables.queues
        paused = queues["paused_ns"] + queues["paused_share"] * (
            self._clock_ns() - queues["paused_since_ns"]
        )
        total: Floats = paused.reshape(-1, len(self.tables.channels)).sum(axis=0)
        return total

    def peak_queue_bytes(self) -> Floats:
        """Return the longest queue of each channel, over its priorities."""
        peaks = self.tables.queues["peak_bytes"].reshape(-1, len(self.tables.channels))
        longest: Floats = peaks.max(axis=0)
        return longest

    def check_invariants(self) -> None:
        """Assert I1 to I5; I1 is the half of INV-12 that holds without fairness."""
        slots, tables = self.active_slots(), self.tables
        flows, channels = tables.flows[slots], tables.channels
        unused = tables.unused[: tables.num_slots - len(slots)].tolist()
        assert sorted([*slots.tolist(), *unused]) == list(range(tables.num_slots)), "I2"
        assert np.all(flows["rate"] > 0), "I2"
        end_ns = tables.heap["key"][: len(slots)]
        assert np.all(end_ns[(np.arange(1, len(slots)) - 1) // 2] <= end_ns[1:]), "I3"
        crossed, flow_of_hop = self._active_hops()
        load, offered = np.zeros(len(channels)), np.zeros(len(channels))
        np.add.at(load, crossed, flows["rate"][flow_of_hop])
        np.add.at(offered, crossed, flows["offered"][flow_of_hop])
        assert np.all(load <= channels["capacity"] * (1 + 1e-9)), "I1"
        slack = 1e-9 * channels["capacity"]
        assert np.all(np.abs(offered - channels["offered"]) <= slack), "I4"
        count = np.bincount(crossed, minlength=len(channels))
        assert np.array_equal(count, channels["num_hops"]), "I4"
        queues = tables.queues
        assert np.all(queues["price"] >= 0), "I5"
        assert np.all(queues["price"][queues["num_hops"] == 0] == 0), "I5"

    def _clock_ns(self) -> float:
        """Return the last instant: an event may lie a rounding error after the whole ns."""
        last_event_ns: float = self.tables.state["clock_ns"].item(0)
        return max(float(self._now_ns), last_event_ns)

    def _active_hops(self) -> tuple[Indices, Ints]:
        """Return channel and flow (as a place in ``active_slots``) of every hop in use."""
        slots = self.active_slots()
        rows = self.tables.hops["channel"].reshape(-1, self.tables.stride)[slots]
        num_hops = self.tables.flows["num_hops"][slots]
        is_used = np.arange(self.tables.stride) < num_hops[:, None]
        return rows[is_used], np.repeat(np.arange(len(slots)), num_hops)
