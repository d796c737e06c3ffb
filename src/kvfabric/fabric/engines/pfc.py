"""Flows under priority flow control (PFC) without end-to-end rate control, event by event.

The quasi-stationary model of a lossless fabric: between arrivals and ends of flows, rates are those
of the stationary state of FIFO queues with a budget per ingress port; the equations stand in
``pfc_kernel``. What it leaves out:

- Start transients. Queues are in their stationary state from the first instant. Filling them takes
  about one budget over a rate, some microseconds per hop: below some 16 MB per flow (0.3 ms at
  400 Gbit/s) use the time-stepped engine.
- The way of a bit over wires and through switches: the caller adds it to completion times.
- Deadlock. Where the routes in use form a cycle of buffers, rates here sink towards 0, but nothing
  is refused: check the routes before.
- Buffers shared among ports (dynamic thresholds): the budget is the mean of the two thresholds.

Priorities each have their own queues, budgets and pauses; a channel is shared equally among those
that have a queue for it, and what one does not use goes to the others (deficit round robin with
equal weights).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvfabric.fabric.engines.maxmin_tables import BPS_PER_BYTE_PER_NS, Floats, Indices, Ints
from kvfabric.fabric.engines.pfc_flows import Ended, PfcFlowSet, UnsoundFlowsError, load_pfc_kernel
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_tables import NEW_FLOW, PfcTables, build_tables
from kvfabric.units import NS_PER_S

# Relative change below which nothing is passed on in a solve, and the sweeps after which a solve
# leaves the rest to the next one. Ten times finer moves mean completion times by less than 0.5 %.
CUT = 1e-3
MAX_SWEEPS = 150


class PfcEngine:
    """Moves flows as a lossless fabric does; offers ``FlowEngine`` and ``BackPressure``.

    Instants are float64 nanoseconds inside and are rounded up on the way out, as in
    ``MaxMinEngine``. Memory follows the largest number of flows active at once.

    Invariants (checked by ``check_invariants``): those of ``PfcFlowSet``.
    """

    def __init__(
        self,
        channel_capacity_bps: Floats | Ints,
        params: PfcParams | None = None,
        *,
        cut: float = CUT,
        max_sweeps: int = MAX_SWEEPS,
    ) -> None:
        """Set up an idle network.

        Args:
            channel_capacity_bps: bit/s of every channel, all above 0.
            params: buffers and loop delay; those of ``PfcParams()`` by default.
            cut: relative change below which a solve passes nothing on.
            max_sweeps: after which a solve leaves the rest to the next one.
        """
        self._params = params or PfcParams()
        self._flows = PfcFlowSet(channel_capacity_bps, self._params, cut=cut, max_sweeps=max_sweeps)
        self._ready: Ended = []  # not yet handed out

    @property
    def num_active(self) -> int:
        """Return the number of flows under way at the last instant told."""
        return self._flows.num_active

    @property
    def num_solves(self) -> int:
        """Return how often rates were solved: once per start, cancellation or end instant."""
        return int(self._flows.tables.state["num_solves"][0])

    @property
    def num_unconverged(self) -> int:
        """Return the solves that left something to the next one; their rates fit all the same."""
        return int(self._flows.tables.state["num_unconverged"][0])

    def start_flows(
        self,
        now_ns: int,
        paths: Sequence[Sequence[int]],
        sizes_bytes: Sequence[int],
        priorities: Sequence[int] | None = None,
    ) -> range:
        """Start flows together, with one solve; return their ids, which are never used again.

        Args:
            now_ns: not before the last instant told. Flows that end by then are kept for the next
                ``advance``.
            paths: channels of each flow, at least one, none twice. The first is the port of the
                source's NIC; others may pass through it (hosts that forward).
            sizes_bytes: at least 1 each.
            priorities: of each flow, from 0 on; all 0 by default.
        """
        flows = self._flows
        first, num_new = flows.num_started, len(paths)
        priorities = (0,) * num_new if priorities is None else priorities
        assert len(sizes_bytes) == num_new == len(priorities), "one size and priority per path"
        if not num_new:
            self._note(flows.run_until(now_ns))
            return range(first, first)
        try:
            ended = flows.start(now_ns, paths, sizes_bytes, priorities)
        except (UnsoundFlowsError, OverflowError):
            self._refuse(paths, sizes_bytes, priorities)
            raise
        if ended:
            self._note(ended)
        return range(first, first + num_new)

    def cancel_flows(self, now_ns: int, flow_ids: Iterable[int]) -> None:
        """Drop flows together, with one solve; those that have ended already are left alone."""
        self._note(self._flows.run_until(now_ns))
        slot_of = self._slot_by_flow_id()
        slots = [slot_of[flow_id] for flow_id in dict.fromkeys(flow_ids) if flow_id in slot_of]
        if slots:
            self._flows.drop(slots)

    def next_completion_ns(self) -> int | None:
        """Return when the next flow ends if nothing else happens, or None when idle."""
        return self._ready[0][0] if self._ready else self._flows.next_ns

    def advance(self, now_ns: int) -> list[int]:
        """Return the flows that ended at or before ``now_ns``, by instant (whole ns), then id."""
        ended = self._flows.run_until(now_ns)
        if self._ready:
            self._note(ended)
            ended, self._ready = self._ready, []
        return [flow_id for _, flow_id in ended]

    def rate_bps(self, flow_id: int) -> float:
        """Return the present rate of an active flow."""
        slot = self._slot_by_flow_id()[flow_id]
        return float(self._flows.tables.flows["rate"][slot]) * BPS_PER_BYTE_PER_NS

    def carried_bytes(self) -> Floats:
        """Return the bytes each channel has carried up to the last instant told."""
        return self._flows.carried_bytes()

    def paused_ns(self) -> Floats:
        """Return, per channel, how long its sender was held back by a pause, in nanoseconds.

        A sender that could run at C and is held to y by the budget of the ingress port ahead is
        paused for the share 1 - y / C of the time. Priorities of a channel add up.
        """
        return self._flows.paused_ns()

    def peak_queue_bytes(self) -> Floats:
        """Return, per channel, the longest queue that waited for it, at the mean of the thresholds.

        After a solve that did not converge it may be passing high.
        """
        return self._flows.peak_queue_bytes()

    def num_victims(self) -> int:
        """Return the ended flows slowed though none of their own links was full.

        See ``BackPressure``; both times are exact, taken at every change of a rate.
        """
        return int(self._flows.tables.state["num_victims"][0])

    def check_invariants(self) -> None:
        """Assert the invariants of ``PfcFlowSet``."""
        self._flows.check_invariants()

    def _note(self, ended: Ended) -> None:
        """Keep what ended for the next ``advance``."""
        self._ready += ended
        self._ready.sort()

    def _refuse(
        self, paths: Sequence[Sequence[int]], sizes_bytes: Sequence[int], priorities: Sequence[int]
    ) -> None:
        """Say what is wrong with new flows."""
        _check_paths(paths, len(self._flows.tables.channels))
        assert min(sizes_bytes) >= 1, "a flow carries at least one byte"
        assert min(priorities) >= 0, "no priority below 0"
        most = self._params.num_priorities - 1
        assert max(priorities) <= most, f"no priority above {most}"

    def _slot_by_flow_id(self) -> dict[int, int]:
        """Return where the active flows are; costs time in proportion to their number."""
        slots = self._flows.active_slots()
        serials = self._flows.tables.flows["serial"][slots]
        return dict(zip(serials.tolist(), slots.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class PfcSolution:
    """What became of a list of flows.

    Attributes:
        finish_s: ``[num_flows]`` when each ends.
        paused_s: ``[num_channels]`` how long the sender of each channel was paused.
        peak_queue_bytes: ``[num_channels]`` the longest queue of each.
        num_victims: as for ``PfcEngine``.
        num_solves: how often rates were solved.
        num_unconverged: solves that left something to the next one.
    """

    finish_s: Floats
    paused_s: Floats
    peak_queue_bytes: Floats
    num_victims: int
    num_solves: int
    num_unconverged: int


def solve_flows(
    capacity_bps: Floats | Ints,
    path_start: Ints,
    path_channels: Ints | Indices,
    start_s: Floats,
    size_bytes: Floats | Ints,
    *,
    params: PfcParams | None = None,
    cut: float = CUT,
    max_sweeps: int = MAX_SWEEPS,
) -> PfcSolution:
    """Return when each flow of a list ends, in seconds, when all that happens is known ahead.

    Args:
        capacity_bps: bit/s of every channel.
        path_start: where the path of flow i begins; one longer than the list.
        path_channels: flow i crosses ``path_channels[path_start[i]:path_start[i + 1]]``.
        start_s: instants of start, in any order, none negative.
        size_bytes: above 0.
        params: as for ``PfcEngine``, as are ``cut`` and ``max_sweeps``. All flows have priority 0.
        cut: as for ``PfcEngine``.
        max_sweeps: as for ``PfcEngine``.
    """
    capacity = np.asarray(capacity_bps, np.float64)
    assert np.all(capacity > 0), "every channel needs a capacity above 0"
    order = np.argsort(start_s, kind="stable")
    num_hops = np.diff(path_start)
    _check_batch(num_hops, start_s, size_bytes)
    _check_hops(num_hops, path_channels, len(capacity))
    starts_ns = np.asarray(start_s, np.float64)[order] * NS_PER_S
    new = np.zeros(len(order), NEW_FLOW)
    new["size_bytes"] = np.asarray(size_bytes, np.float64)[order]
    new["first_hop"], new["num_hops"] = path_start[:-1][order], num_hops[order]
    tables = build_tables(
        capacity,
        params or PfcParams(),
        num_slots=max(1, len(order)),
        stride=int(num_hops.max(initial=1)),
        cut=cut,
        max_iterations=max_sweeps,
    )
    tables = tables._replace(new=new, told=np.array(path_channels, np.int32))
    finish_ns = np.zeros(len(order))
    load_pfc_kernel().run_batch(tables, starts_ns, finish_ns)
    finish_s = np.empty(len(order))
    finish_s[order] = finish_ns / NS_PER_S
    return _solution(tables, finish_s)


def _solution(tables: PfcTables, finish_s: Floats) -> PfcSolution:
    num_channels, state = len(tables.channels), tables.state[0]
    return PfcSolution(
        finish_s=finish_s,
        paused_s=tables.queues["paused_ns"][:num_channels] / NS_PER_S,
        peak_queue_bytes=tables.queues["peak_bytes"][:num_channels].copy(),
        num_victims=int(state["num_victims"]),
        num_solves=int(state["num_solves"]),
        num_unconverged=int(state["num_unconverged"]),
    )


def _check_paths(paths: Sequence[Sequence[int]], num_channels: int) -> None:
    for path in paths:
        assert len(path) > 0, "a path has at least one channel"
        assert len(set(path)) == len(path), f"path {path} has a channel twice"
        assert min(path) >= 0, f"path {path} has a channel below 0"
        assert max(path) < num_channels, f"path {path} has a channel above {num_channels - 1}"


def _check_batch(num_hops: Ints, start_s: Floats, size_bytes: Floats | Ints) -> None:
    assert len(num_hops) == len(start_s) == len(size_bytes), "one path, start and size per flow"
    assert np.all(start_s >= 0), "no start below 0"
    assert np.all(np.asarray(size_bytes) > 0), "every flow has a size above 0"


def _check_hops(num_hops: Ints, path_channels: Ints | Indices, num_channels: int) -> None:
    assert np.all(num_hops > 0), "a path has at least one channel"
    assert np.all(path_channels >= 0), "no channel below 0"
    assert np.all(path_channels < num_channels), f"no channel above {num_channels - 1}"
    flow_of_hop = np.repeat(np.arange(len(num_hops)), num_hops)
    for apart in range(1, int(num_hops.max(initial=1))):
        is_twice = path_channels[apart:] == path_channels[:-apart]
        is_twice &= flow_of_hop[apart:] == flow_of_hop[:-apart]
        assert not is_twice.any(), "no path has a channel twice"
