"""Exact max-min fair flows over channels, event by event, for a driver that owns the time.

``maxmin_reference`` is the readable twin; the arithmetic lives in ``maxmin_kernel``.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import numpy as np

from kvfabric.fabric.engines.maxmin_flows import FULL_SOLVE_ABOVE, FlowSet, load_kernel
from kvfabric.fabric.engines.maxmin_tables import (
    BPS_PER_BYTE_PER_NS,
    NEW_FLOW,
    Floats,
    Indices,
    Ints,
    Records,
    build_tables,
)
from kvfabric.units import NS_PER_S


class MaxMinEngine:
    """Moves flows at max-min fair rates; time only advances when told to.

    Instants are float64 nanoseconds inside: exact to 0.0005 ns after one hour. Two flows that end
    closer together than ``1e-6 ns + 1e-14 * now`` (0.04 ns after one hour) end as one event. What
    goes out is rounded up to whole nanoseconds, beyond that tolerance. Memory follows the largest
    number of flows active at once, not the number ever started.

    Invariants (checked by ``check_invariants``): those of ``FlowSet``.
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
        self._flows = FlowSet(channel_capacity_bps, full_solve_above)
        self._ready: list[tuple[int, int]] = []  # (instant, flow id), not yet handed out

    @property
    def num_active(self) -> int:
        """Return the number of flows under way at the last instant told."""
        return self._flows.num_active

    @property
    def num_solves(self) -> int:
        """Return how often rates were solved: once per start, cancellation or end instant."""
        return int(self._flows.tables.state["num_solves"][0])

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
        _check_paths(paths, len(self._flows.tables.channels))
        assert len(sizes_bytes) == len(paths), "one size per path"
        assert min(sizes_bytes, default=1) >= 1, "a flow carries at least one byte"
        self._run_until(now_ns)
        first = self._flows.num_started
        if paths:
            num_hops = [len(path) for path in paths]
            first_hop = accumulate(num_hops[:-1], initial=0)
            rows = zip(
                sizes_bytes, sizes_bytes, first_hop, num_hops, [-1] * len(paths), strict=True
            )
            new = np.array(list(rows), NEW_FLOW)
            path_channels = np.array(list(chain.from_iterable(paths)), np.int32)
            self._flows.start(new, path_channels, len(paths), max(num_hops))
        return range(first, self._flows.num_started)

    def cancel_flows(self, now_ns: int, flow_ids: Iterable[int]) -> None:
        """Drop flows together, with one solve; those that have ended already are left alone."""
        self._run_until(now_ns)
        slot_of = self._slot_by_flow_id()
        slots = [slot_of[flow_id] for flow_id in dict.fromkeys(flow_ids) if flow_id in slot_of]
        if slots:
            self._flows.drop(np.array(slots, np.int64))

    def next_completion_ns(self) -> int | None:
        """Return when the next flow ends if nothing else happens, or None when idle."""
        return self._ready[0][0] if self._ready else self._flows.next_ns

    def advance(self, now_ns: int) -> list[int]:
        """Return the flows that ended at or before ``now_ns``, by instant (whole ns), then id."""
        self._run_until(now_ns)
        ended, self._ready = self._ready, []
        return [flow_id for _, flow_id in ended]

    def rate_bps(self, flow_id: int) -> float:
        """Return the present rate of an active flow."""
        slot = self._slot_by_flow_id()[flow_id]
        return float(self._flows.tables.flows["rate"][slot]) * BPS_PER_BYTE_PER_NS

    def carried_bytes(self) -> Floats:
        """Return the bytes each channel has carried up to the last instant told."""
        return self._flows.carried_bytes()

    def check_invariants(self) -> None:
        """Assert the invariants of ``FlowSet``; I1 and I2 are INV-12 of the project."""
        self._flows.check_invariants()

    def _run_until(self, now_ns: int) -> None:
        num_done, _ = self._flows.run_until(now_ns)
        if num_done:
            done = self._flows.tables.done[:num_done]
            is_merged = bool(self._ready)
            self._ready += zip(done["whole_ns"].tolist(), done["serial"].tolist(), strict=True)
            if is_merged:
                self._ready.sort()

    def _slot_by_flow_id(self) -> dict[int, int]:
        """Return where the active flows are; costs time in proportion to their number."""
        slots = self._flows.active_slots()
        serials = self._flows.tables.flows["serial"][slots]
        return dict(zip(serials.tolist(), slots.tolist(), strict=True))


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
    if not len(order):
        return np.zeros(0)
    tables = build_tables(
        capacity,
        num_slots=len(order),
        stride=int(num_hops.max()),
        full_solve_above=full_solve_above,
    )
    finish_ns = np.zeros(len(order))
    load_kernel().run_batch(
        tables,
        _new_flows(path_start, size_bytes, order),
        np.asarray(path_channels, np.int32),
        np.asarray(start_s, np.float64)[order] * NS_PER_S,
        finish_ns,
    )
    finish_s = np.empty(len(order))
    finish_s[order] = finish_ns / NS_PER_S
    return finish_s


def _new_flows(path_start: Ints, size_bytes: Floats | Ints, order: Ints) -> Records:
    new = np.zeros(len(order), NEW_FLOW)
    new["size_bytes"] = np.asarray(size_bytes, np.float64)[order]
    new["first_hop"] = path_start[:-1][order]
    new["num_hops"] = np.diff(path_start)[order]
    new["group"] = -1
    return new


def _check_paths(paths: Sequence[Sequence[int]], num_channels: int) -> None:
    for path in paths:
        assert len(path) > 0, "a path has at least one channel"
        assert len(set(path)) == len(path), f"path {path} has a channel twice"
        assert min(path) >= 0, f"path {path} has a channel below 0"
        assert max(path) < num_channels, f"path {path} has a channel above {num_channels - 1}"


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
