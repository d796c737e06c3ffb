"""Exact max-min fair flows over channels, event by event, for a driver that owns the time.

``maxmin_reference`` is the readable twin; the arithmetic lives in ``maxmin_kernel``, which is
imported (and compiled, once per machine) only when the first engine is built.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from types import ModuleType

import numpy as np

from kvfabric.fabric.maxmin_tables import (
    BPS_PER_BYTE_PER_NS,
    Floats,
    Indices,
    Ints,
    build_tables,
    grow_tables,
)
from kvfabric.units import NS_PER_S

# Share of the active flows above which solving all at once costs less than growing the set. It
# moves only the cost, never a result.
FULL_SOLVE_ABOVE = 1 / 3
_FIRST_SLOTS = 64
_FIRST_STRIDE = 8


def _load_kernel() -> ModuleType:
    """Return the kernels, imported late: only who runs flows pays half a second for numba."""
    from kvfabric.fabric import maxmin_kernel  # noqa: PLC0415 — a late import

    return maxmin_kernel


class MaxMinEngine:
    """Moves flows at max-min fair rates; time only advances when told to.

    Instants are float64 nanoseconds inside: exact to 0.0005 ns after one hour. Two flows that end
    closer together than ``1e-6 ns + 1e-14 * now`` (0.04 ns after one hour) end as one event. What
    goes out is rounded up to whole nanoseconds, beyond that tolerance. Memory follows the largest
    number of flows active at once, not the number ever started.

    Invariants (checked by ``check_invariants``):
        I1. on every channel the rates sum to at most the capacity.
        I2. every flow has a bottleneck: a saturated channel on which no flow is faster.
        I3. every slot is either free or holds exactly one active flow.
        I4. in the heap of end instants no flow comes before its parent.
    """

    def __init__(
        self, channel_capacity_bps: Floats | Ints, *, full_solve_above: float = FULL_SOLVE_ABOVE
    ) -> None:
        """Set up an idle network.

        Args:
            channel_capacity_bps: bit/s of every channel, all above 0.
            full_solve_above: share of the active flows above which all are solved again: 0 always
                solves all, 1 never does. Results are the same.
        """
        capacity_bps = np.asarray(channel_capacity_bps, np.float64)
        assert np.all(capacity_bps > 0), "every channel needs a capacity above 0"
        self._kernel = _load_kernel()
        self._tables = build_tables(
            capacity_bps,
            num_slots=_FIRST_SLOTS,
            stride=_FIRST_STRIDE,
            full_solve_above=full_solve_above,
        )
        self._now_ns = 0
        self._next_ns: int | None = None
        self._num_started = 0
        self._slot_by_flow_id: dict[int, int] = {}
        self._flow_id_by_slot: dict[int, int] = {}
        self._ready: list[tuple[int, int]] = []  # (instant, flow id), not yet handed out

    @property
    def num_active(self) -> int:
        """Return the number of flows under way at the last instant told."""
        return len(self._slot_by_flow_id)

    @property
    def num_solves(self) -> int:
        """Return how often rates were solved: once per start, cancellation or end instant."""
        return int(self._tables.state["num_solves"][0])

    def start_flows(
        self, now_ns: int, paths: Sequence[Sequence[int]], sizes_bytes: Sequence[int]
    ) -> range:
        """Start flows together, with one solve; return their ids, which are never used again.

        Args:
            now_ns: not before the last instant told. Flows that end by then are kept for the next
                ``advance``.
            paths: channels of each flow, at least one, none twice.
            sizes_bytes: at least 1 each.
        """
        path_start, path_channels = _flat_paths(paths, len(self._tables.channels))
        assert len(sizes_bytes) == len(paths), "one size per path"
        assert min(sizes_bytes, default=1) >= 1, "a flow carries at least one byte"
        self._run_until(now_ns)
        num_new = len(paths)
        flow_ids = range(self._num_started, self._num_started + num_new)
        if num_new:
            self._reserve(num_new, max(map(len, paths)))
            sizes = np.array(sizes_bytes, np.float64)
            self._kernel.start_flows(
                *self._tables, path_start, path_channels, sizes, (0, num_new), self._clock_ns()
            )
            self._note_started(flow_ids)
        return flow_ids

    def cancel_flows(self, now_ns: int, flow_ids: Iterable[int]) -> None:
        """Drop flows together, with one solve; those that have ended already are left alone."""
        self._run_until(now_ns)
        active = [flow_id for flow_id in flow_ids if flow_id in self._slot_by_flow_id]
        slots = [self._slot_by_flow_id.pop(flow_id) for flow_id in dict.fromkeys(active)]
        for slot in slots:
            del self._flow_id_by_slot[slot]
        if slots:
            self._kernel.cancel_flows(*self._tables, np.array(slots, np.int64), self._clock_ns())
            self._note_next()

    def next_completion_ns(self) -> int | None:
        """Return when the next flow ends if nothing else happens, or None when idle."""
        if self._ready:
            return min(self._ready)[0]
        return self._next_ns

    def advance(self, now_ns: int) -> list[int]:
        """Return the flows that ended at or before ``now_ns``, by instant (whole ns), then id."""
        self._run_until(now_ns)
        ended, self._ready = self._ready, []
        return [flow_id for _, flow_id in sorted(ended)]

    def rate_bps(self, flow_id: int) -> float:
        """Return the present rate of an active flow."""
        slot = self._slot_by_flow_id[flow_id]
        return float(self._tables.flows["rate"][slot]) * BPS_PER_BYTE_PER_NS

    def carried_bytes(self) -> Floats:
        """Return the bytes each channel has carried up to the last instant told."""
        carried: Floats = self._tables.channels["carried_bytes"].copy()
        flows = self._tables.flows[self._active_slots()]
        left = flows["remaining_bytes"] - flows["rate"] * (self._clock_ns() - flows["updated_ns"])
        sent = flows["size_bytes"] - np.maximum(left, 0.0)
        channels, flow_of_hop = self._active_hops()
        np.add.at(carried, channels, sent[flow_of_hop])
        return carried

    def check_invariants(self) -> None:
        """Assert I1 to I4; I1 and I2 are INV-12 of the project."""
        slots = self._active_slots()
        unused = self._tables.unused[: self._tables.num_slots - len(slots)].tolist()
        assert set(self._flow_id_by_slot) == set(slots.tolist()), "I3"
        assert sorted([*slots.tolist(), *unused]) == list(range(self._tables.num_slots)), "I3"
        end_ns = self._tables.heap["key"][: len(slots)]
        assert np.all(end_ns[(np.arange(1, len(slots)) - 1) // 2] <= end_ns[1:]), "I4"
        rates, capacity = self._tables.flows["rate"][slots], self._tables.channels["capacity"]
        channels, flow_of_hop = self._active_hops()
        load, fastest = np.zeros(len(capacity)), np.zeros(len(capacity))
        np.add.at(load, channels, rates[flow_of_hop])
        np.maximum.at(fastest, channels, rates[flow_of_hop])
        assert np.all(load <= capacity * (1 + 1e-9)), "I1"
        is_saturated = load >= capacity * (1 - 1e-9)
        is_fastest = rates[flow_of_hop] >= fastest[channels] * (1 - 1e-9)
        held = np.unique(flow_of_hop[is_saturated[channels] & is_fastest])
        assert len(held) == len(slots), "I2"

    def _run_until(self, now_ns: int) -> None:
        assert now_ns >= self._now_ns, f"time cannot go back from {self._now_ns} to {now_ns} ns"
        self._now_ns = now_ns
        if self._next_ns is None or self._next_ns > now_ns:
            return
        num_done = self._kernel.run_until(*self._tables, float(now_ns))
        for instant_ns, slot in self._tables.done[:num_done].tolist():
            flow_id = self._flow_id_by_slot.pop(slot)
            del self._slot_by_flow_id[flow_id]
            self._ready.append((self._whole_ns(instant_ns), flow_id))
        self._note_next()

    def _clock_ns(self) -> float:
        """Return the present instant; an event may lie a rounding error after the whole ns."""
        return max(float(self._now_ns), float(self._tables.state["clock_ns"][0]))

    def _whole_ns(self, instant_ns: float) -> int:
        """Round up, unless only rounding errors lie above the whole nanosecond."""
        slack_ns: float = self._kernel.slack_ns(instant_ns)
        return math.ceil(instant_ns - slack_ns)

    def _note_started(self, flow_ids: range) -> None:
        slots = self._tables.done["item"][: len(flow_ids)].tolist()
        self._num_started += len(flow_ids)
        self._slot_by_flow_id.update(zip(flow_ids, slots, strict=True))
        self._flow_id_by_slot.update(zip(slots, flow_ids, strict=True))
        self._note_next()

    def _note_next(self) -> None:
        is_idle = not self._slot_by_flow_id
        self._next_ns = None if is_idle else self._whole_ns(self._tables.heap["key"].item(0))

    def _reserve(self, num_new: int, num_hops: int) -> None:
        """Make room for more flows and longer paths, by doubling."""
        num_slots, stride = self._tables.num_slots, self._tables.stride
        while num_slots < self.num_active + num_new:
            num_slots *= 2
        while stride < num_hops:
            stride *= 2
        if (num_slots, stride) != (self._tables.num_slots, self._tables.stride):
            self._tables = grow_tables(self._tables, num_slots=num_slots, stride=stride)

    def _active_slots(self) -> Ints:
        slots: Ints = self._tables.heap["item"][: self.num_active]
        return slots

    def _active_hops(self) -> tuple[Indices, Ints]:
        """Return channel and flow (as a place in ``_active_slots``) of every hop in use."""
        slots = self._active_slots()
        rows = self._tables.hops["channel"].reshape(-1, self._tables.stride)[slots]
        num_hops = self._tables.flows["num_hops"][slots]
        is_used = np.arange(self._tables.stride) < num_hops[:, None]
        return rows[is_used], np.repeat(np.arange(len(slots)), num_hops)


def solve_flows(
    capacity_bps: Floats | Ints,
    path_start: Ints,
    path_channels: Ints | Indices,
    start_s: Floats,
    size_bytes: Floats | Ints,
    *,
    full_solve_above: float = FULL_SOLVE_ABOVE,
) -> Floats:
    """Return when each flow of a list ends, in seconds, when all that happens is known ahead.

    Args:
        capacity_bps: bit/s of every channel.
        path_start: where the path of flow i begins; one longer than the list.
        path_channels: flow i crosses ``path_channels[path_start[i]:path_start[i + 1]]``.
        start_s: instants of start, in any order, none negative.
        size_bytes: above 0.
        full_solve_above: as for ``MaxMinEngine``.
    """
    capacity = np.asarray(capacity_bps, np.float64)
    num_hops = np.diff(path_start)
    order = np.argsort(start_s, kind="stable")
    _check_batch(capacity, num_hops, path_channels, start_s, size_bytes)
    ordered_start, ordered_channels = _ordered_paths(path_start, path_channels, order)
    if not len(order):
        return np.zeros(0)
    tables = build_tables(
        capacity,
        num_slots=len(order),
        stride=int(num_hops.max()),
        full_solve_above=full_solve_above,
    )
    finish_ns = np.zeros(len(order))
    _load_kernel().run_batch(
        *tables,
        ordered_start,
        ordered_channels,
        np.asarray(size_bytes, np.float64)[order],
        np.asarray(start_s, np.float64)[order] * NS_PER_S,
        finish_ns,
        np.zeros(len(order), np.int64),
    )
    finish_s = np.empty(len(order))
    finish_s[order] = finish_ns / NS_PER_S
    return finish_s


def _flat_paths(paths: Sequence[Sequence[int]], num_channels: int) -> tuple[Ints, Indices]:
    """Return paths as one list of channels and where each begins in it."""
    for path in paths:
        assert len(path) > 0, "a path has at least one channel"
        assert len(set(path)) == len(path), f"path {path} has a channel twice"
        assert min(path) >= 0, f"path {path} has a channel below 0"
        assert max(path) < num_channels, f"path {path} has a channel above {num_channels - 1}"
    path_start = np.array([0, *accumulate(map(len, paths))], np.int64)
    return path_start, np.array(list(chain.from_iterable(paths)), np.int32)


def _ordered_paths(
    path_start: Ints, path_channels: Ints | Indices, order: Ints
) -> tuple[Ints, Indices]:
    """Return the paths of ``_flat_paths`` form in another order of flows."""
    num_hops = np.diff(path_start)[order]
    ordered_start = np.concatenate([[0], np.cumsum(num_hops)])
    shift = np.repeat(path_start[:-1][order] - ordered_start[:-1], num_hops)
    hop_idx = np.arange(len(shift)) + shift
    return ordered_start, np.asarray(path_channels, np.int32)[hop_idx]


def _check_batch(
    capacity_bps: Floats,
    num_hops: Ints,
    path_channels: Ints | Indices,
    start_s: Floats,
    size_bytes: Floats | Ints,
) -> None:
    assert np.all(capacity_bps > 0), "every channel needs a capacity above 0"
    assert len(num_hops) == len(start_s) == len(size_bytes), "one path, start and size per flow"
    if not len(num_hops):
        return
    assert num_hops.min() > 0, "a path has at least one channel"
    assert np.all(start_s >= 0), "no start below 0"
    assert np.all(size_bytes > 0), "every flow has a size above 0"
    num_channels = len(capacity_bps)
    assert np.all(path_channels >= 0), "no channel below 0"
    assert np.all(path_channels < num_channels), f"no channel above {num_channels - 1}"
    flow_of_hop = np.repeat(np.arange(len(num_hops)), num_hops)
    hops = flow_of_hop * num_channels + path_channels
    assert len(np.unique(hops)) == len(hops), "no path has a channel twice"
