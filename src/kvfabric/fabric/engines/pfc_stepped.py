"""Flows under priority flow control (PFC) as fluid in queues, step by step.

Follows thresholds, queues and pauses as they happen, at the cost of time: about 0.1 us per step and
flow that shares channels with a queue. Meant for flows under 16 MB, and as a check of the event
driven engine. ``pfc_stepped_kernel`` has the arithmetic, ``pfc_stepped_reference`` is the twin.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import numpy as np

from kvfabric.errors import CapacityError
from kvfabric.fabric.engines import pfc_stepped_tables as tables
from kvfabric.fabric.engines.maxmin_flows import entry_point
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_stepped_tables import SteppedTables, step_from
from kvfabric.fabric.graph import FloatArray, IntArray

_FIRST_SLOTS = 64
_FIRST_STRIDE = 8
_NEVER = 1 << 62


class PfcSteppedEngine:
    """Implements ``FlowEngine`` and ``BackPressure``.

    A flow starts at the next step and ends inside one, at the instant its last byte leaves the last
    queue of its path. Steps last a third of the pause loop (700 ns by default). To name the next
    end it runs ahead on a copy; a start or cancellation before that end discards the copy. Answers
    do not depend on when they are asked for.

    Does not model ECN and congestion control (DCQCN), shared buffers, priorities (all flows are in
    one), acknowledgements, or headroom running out. Routes that form a cycle of buffers can stand
    still for ever, as in reality: check them first.

    Invariants (checked by ``check_invariants``):
        I1. every channel counts the flows that cross it and those that still send into it.
        I2. bytes of a flow not sent, queued and delivered add up to its size.
        I3. every slot is either free or holds exactly one active flow.
    """

    def __init__(
        self,
        channel_capacity_bps: FloatArray | IntArray,
        params: PfcParams | None = None,
        *,
        time_scale: int = 1,
    ) -> None:
        """Set up idle channels.

        Args:
            channel_capacity_bps: bit/s of every channel, all above 0.
            params: thresholds and loop delay; by default those of the packet-level runs.
            time_scale: makes steps, thresholds and delay so many times as large. Rates of flows
                that last long stay the same, since they depend on the ratio alone; start and end of
                a flow blur by some microseconds times this.
        """
        from kvfabric.fabric.engines import pfc_stepped_kernel as kernel  # noqa: PLC0415 — late: numba

        capacity_bps = np.asarray(channel_capacity_bps, np.float64)
        assert np.all(capacity_bps > 0), "every channel needs a capacity above 0"
        assert time_scale >= 1, "steps are not made finer than a third of the loop"
        self._tables = tables.build_tables(
            capacity_bps,
            params or PfcParams(),
            time_scale=time_scale,
            num_slots=_FIRST_SLOTS,
            stride=_FIRST_STRIDE,
        )
        self._saved: SteppedTables = tables.copy_tables(self._tables)
        # compiled now, so that forked processes inherit the machine code
        t, none, no_slots = self._tables, np.zeros(0), np.zeros(0, np.int32)
        self._run = entry_point(kernel.run, t, 0)
        self._start = entry_point(kernel.start, t, none, no_slots, no_slots, 0)
        self._drop = entry_point(kernel.drop, t, no_slots)
        self._save = entry_point(kernel.save, t, self._saved)
        self._add_passed = entry_point(kernel.passed_bytes, t, none)
        self._time_scale = time_scale
        self._is_ahead = False  # whether the tables are of a later step than the instant told
        self._step_ns = float(self._tables.state["step_ns"][0])
        self._now_ns = 0
        self._num_started = 0
        self._found: list[tuple[int, int]] = []  # (instant, flow id) of ends, in order

    @property
    def num_active(self) -> int:
        """Return the number of flows under way at the last instant told."""
        is_ended = sum(instant_ns <= self._now_ns for instant_ns, _ in self._found)
        return int(self._tables.state["num_active"][0]) + len(self._found) - is_ended

    @property
    def step_ns(self) -> float:
        """Return how long a step lasts."""
        return self._step_ns

    @property
    def num_flow_steps(self) -> int:
        """Return the steps run so far, each times the flows that were moved in it."""
        return int(self._tables.state["num_flow_steps"][0])

    def start_flows(
        self, now_ns: int, paths: Sequence[Sequence[int]], sizes_bytes: Sequence[int]
    ) -> range:
        """Start flows at the step after ``now_ns``; see ``FlowEngine``."""
        assert len(sizes_bytes) == len(paths), "one size per path"
        assert min(sizes_bytes, default=1) >= 1, "a flow carries at least one byte"
        _check_paths(paths, len(self._tables.channels))
        self._come_to(now_ns)
        first = self._num_started
        if paths:
            self._make_room(len(paths), max(map(len, paths)))
            self._start(
                self._tables,
                np.array(sizes_bytes, np.float64),
                np.array(list(chain.from_iterable(paths)), np.int32),
                np.array(list(accumulate(map(len, paths), initial=0)), np.int32),
                first,
            )
            self._num_started += len(paths)
        return range(first, self._num_started)

    def cancel_flows(self, now_ns: int, flow_ids: Iterable[int]) -> None:
        """Drop flows; those that have ended already are left alone."""
        self._come_to(now_ns)
        wanted = dict.fromkeys(flow_ids)
        active = self._active_slots()
        serials = self._tables.flows["serial"][active].tolist()
        slots = [
            slot for slot, serial in zip(active.tolist(), serials, strict=True) if serial in wanted
        ]
        # one that ends within the step already run, but after now
        self._found = [
            (instant_ns, flow_id)
            for instant_ns, flow_id in self._found
            if instant_ns <= now_ns or flow_id not in wanted
        ]
        if slots:
            self._drop(self._tables, np.array(slots, np.int32))

    def next_completion_ns(self) -> int | None:
        """Return when the next flow ends if nothing else happens, or None when idle."""
        if not self._found and self._tables.state["num_active"][0]:
            self._run_to_next_end()
        return self._found[0][0] if self._found else None

    def advance(self, now_ns: int) -> list[int]:
        """Return the flows that ended at or before ``now_ns``, by instant (whole ns), then id."""
        if not self._is_ahead or self._found[0][0] <= now_ns:
            self._come_to(now_ns)
        self._now_ns = now_ns
        num_ended = sum(instant_ns <= now_ns for instant_ns, _ in self._found)
        ended, self._found = self._found[:num_ended], self._found[num_ended:]
        return [flow_id for _, flow_id in ended]

    def carried_bytes(self) -> FloatArray:
        """Return the bytes each channel has carried in the steps up to the last instant told."""
        self._come_to(self._now_ns)
        self._save(self._tables, self._saved)
        carried: FloatArray = self._tables.channels["carried_bytes"].copy()
        self._add_passed(self._saved, carried)
        return carried

    def paused_ns(self) -> FloatArray:
        """Return, per channel, how long its sender was held back by a pause, in nanoseconds."""
        self._come_to(self._now_ns)
        paused: FloatArray = self._tables.channels["paused_steps"] * self._step_ns
        return paused

    def peak_queue_bytes(self) -> FloatArray:
        """Return, per channel, the longest queue that was left waiting after a step.

        As if ``time_scale`` were 1: queues grow with the thresholds.
        """
        self._come_to(self._now_ns)
        peak: FloatArray = self._tables.channels["peak_bytes"] / self._time_scale
        return peak

    def num_victims(self) -> int:
        """Return the ended flows slowed though none of their own links was full.

        See ``BackPressure``; rates and loads are means over windows of 64 steps, or less where a
        flow starts, ends, or runs free of queues.
        """
        self._come_to(self._now_ns)
        return int(self._tables.state["num_victims"][0])

    def check_invariants(self) -> None:
        """Assert I1 to I3 as of the last instant told."""
        self._come_to(self._now_ns)
        t = self._tables
        active = self._active_slots()
        unused = t.unused[: t.num_slots - len(active)].tolist()
        assert sorted([*active.tolist(), *unused]) == list(range(t.num_slots)), "I3"
        flows = t.flows[active]
        queued = t.queued.reshape(-1, t.stride)[active]
        is_used = np.arange(t.stride) < flows["num_hops"][:, None]
        queued = np.where(is_used, queued, 0.0)
        assert np.all(queued >= -1e-6), "I2"
        held = flows["left_bytes"] + queued.sum(axis=1)
        assert np.all(flows["left_bytes"] >= 0), "I2"
        assert np.all(held <= flows["size_bytes"] * (1 + 1e-9) + 1e-3), "I2"
        paths = t.path.reshape(-1, t.stride)[active]
        num_flows = np.bincount(paths[is_used], minlength=len(t.channels))
        assert np.array_equal(num_flows, t.channels["num_flows"]), "I1"
        is_sending = flows["tail_hop"] == 0
        num_sources = np.bincount(paths[is_sending, 0], minlength=len(t.channels))
        assert np.array_equal(num_sources, t.channels["num_sources"]), "I1"

    def _active_slots(self) -> tables.Indices:
        slots: tables.Indices = self._tables.active[: int(self._tables.state["num_active"][0])]
        return slots

    def _come_to(self, now_ns: int) -> None:
        """Have run exactly the steps that begin before an instant."""
        assert now_ns >= self._now_ns, f"time cannot go back from {self._now_ns} to {now_ns} ns"
        self._now_ns = now_ns
        until = step_from(now_ns, self._step_ns)
        if self._is_ahead and self._step() > until:
            self._save(self._saved, self._tables)
            self._found = []
        self._is_ahead = False
        while self._step() < until:
            self._note_ends(self._run(self._tables, until))

    def _run_to_next_end(self) -> None:
        self._save(self._tables, self._saved)
        self._is_ahead = True
        self._note_ends(self._run(self._tables, _NEVER))
        if not self._found:
            raise CapacityError(
                f"fabric: {self.num_active} flows stand still, because full buffers wait for each"
                " other in a cycle. Choose paths without such cycles, such as up and then down"
            )

    def _step(self) -> int:
        return int(self._tables.state["step"][0])

    def _note_ends(self, num_done: int) -> None:
        """Note what the step just run ended: in whole ns, after the step began."""
        done = self._tables.done[:num_done]
        first_ns = math.floor((self._step() - 1) * self._step_ns) + 1
        instants_ns = [max(first_ns, math.ceil(at)) for at in done["instant_ns"].tolist()]
        ended = zip(instants_ns, done["serial"].tolist(), strict=True)
        self._found = sorted([*self._found, *ended])

    def _make_room(self, num_new: int, num_hops: int) -> None:
        """Make room for more flows and longer paths, by doubling."""
        num_slots, stride = self._tables.num_slots, self._tables.stride
        while num_slots < int(self._tables.state["num_active"][0]) + num_new:
            num_slots *= 2
        while stride < num_hops:
            stride *= 2
        if (num_slots, stride) != (self._tables.num_slots, self._tables.stride):
            self._tables = tables.grow_tables(self._tables, num_slots=num_slots, stride=stride)
            self._saved = tables.copy_tables(self._tables)


def _check_paths(paths: Sequence[Sequence[int]], num_channels: int) -> None:
    for path in paths:
        assert len(path) > 0, "a path has at least one channel"
        assert len(set(path)) == len(path), f"path {path} has a channel twice"
        assert min(path) >= 0, f"path {path} has a channel below 0"
        assert max(path) < num_channels, f"path {path} has a channel above {num_channels - 1}"
