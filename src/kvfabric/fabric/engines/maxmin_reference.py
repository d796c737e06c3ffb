"""Max-min fair flows in plain Python: the readable twin of ``maxmin``, and its oracle.

Every event solves all flows again by progressive filling. With ``Fraction`` the arithmetic is exact
and ties are true ties; with ``float`` it is faster.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

Number = TypeVar("Number", float, Fraction)

BPS_PER_BYTE_PER_NS = 8 * 10**9


def fair_rates(capacity: Sequence[Number], paths: Sequence[Sequence[int]]) -> list[Number]:
    """Return the max-min fair rate of each flow, in the unit of the capacities.

    Raise the rate of all flows together until a channel is full; its flows have found their rate.
    Go on with the others and what is left. No flow can gain without a slower or equal one losing.
    Source: Bertsekas and Gallager, Data Networks, 2nd ed. 1992, section 6.5.2.

    >>> fair_rates([10.0, 4.0], [[0], [0, 1], [1]])
    [8.0, 2.0, 2.0]
    """
    residual = list(capacity)
    rates: dict[int, Number] = {}
    while len(rates) < len(paths):
        rising = [flow for flow in range(len(paths)) if flow not in rates]
        num_rising = [0] * len(capacity)
        for flow in rising:
            for channel in paths[flow]:
                num_rising[channel] += 1
        shares = {c: residual[c] / num for c, num in enumerate(num_rising) if num}
        full = min(shares, key=lambda channel: shares[channel])
        for flow in rising:
            if full in paths[flow]:
                rates[flow] = shares[full]
                for channel in paths[flow]:
                    residual[channel] -= shares[full]
    return [rates[flow] for flow in range(len(paths))]


@dataclass(slots=True, eq=False)
class _Flow(Generic[Number]):
    path: tuple[int, ...]
    remaining_bytes: Number
    rate: Number


class ReferenceEngine(Generic[Number]):
    """Does what ``MaxMinEngine`` does, at the cost of a full solve per event.

    ``finish_ns`` holds the instant, not rounded, at which each completed flow ended.
    """

    def __init__(
        self, channel_capacity_bps: Sequence[int], number: Callable[[int], Number]
    ) -> None:
        """Set up an idle network; ``number`` is ``Fraction`` or ``float``."""
        self._number: Callable[[int], Number] = number
        self._capacity: list[Number] = [
            number(bps) / BPS_PER_BYTE_PER_NS for bps in channel_capacity_bps
        ]
        self._carried: list[Number] = [number(0) for _ in channel_capacity_bps]
        self._clock_ns: Number = number(0)
        self._flows: dict[int, _Flow[Number]] = {}
        self._num_started = 0
        self._ready: list[int] = []
        self.finish_ns: dict[int, Number] = {}

    @property
    def num_active(self) -> int:
        """Return the number of flows under way."""
        return len(self._flows)

    def start_flows(
        self, now_ns: int, paths: Sequence[Sequence[int]], sizes_bytes: Sequence[int]
    ) -> range:
        """Start flows together and return their ids."""
        self._run_until(self._number(now_ns))
        flow_ids = range(self._num_started, self._num_started + len(paths))
        for flow_id, path, size_bytes in zip(flow_ids, paths, sizes_bytes, strict=True):
            self._flows[flow_id] = _Flow(
                tuple(path), self._number(size_bytes), rate=self._number(0)
            )
        self._num_started += len(paths)
        self._solve()
        return flow_ids

    def cancel_flows(self, now_ns: int, flow_ids: Iterable[int]) -> None:
        """Drop flows; those that have ended already are left alone."""
        self._run_until(self._number(now_ns))
        for flow_id in flow_ids:
            self._flows.pop(flow_id, None)
        self._solve()

    def next_completion_ns(self) -> int | None:
        """Return when the next flow ends if nothing else happens, or None when idle."""
        if self._ready:
            return min(math.ceil(self.finish_ns[flow_id]) for flow_id in self._ready)
        next_ns = self._next_ns()
        return None if next_ns is None else math.ceil(next_ns)

    def advance(self, now_ns: int) -> list[int]:
        """Return the flows that ended at or before ``now_ns``, by instant (whole ns), then id."""
        self._run_until(self._number(now_ns))
        ended, self._ready = self._ready, []
        return sorted(ended, key=lambda flow_id: (math.ceil(self.finish_ns[flow_id]), flow_id))

    def rate_bps(self, flow_id: int) -> Number:
        """Return the present rate of an active flow."""
        return self._flows[flow_id].rate * BPS_PER_BYTE_PER_NS

    def carried_bytes(self) -> list[Number]:
        """Return the bytes each channel has carried up to the last instant told."""
        return list(self._carried)

    def _solve(self) -> None:
        rates = fair_rates(self._capacity, [flow.path for flow in self._flows.values()])
        for flow, rate in zip(self._flows.values(), rates, strict=True):
            flow.rate = rate

    def _next_ns(self) -> Number | None:
        if not self._flows:
            return None
        left_ns: Number = min(f.remaining_bytes / f.rate for f in self._flows.values())
        return self._clock_ns + left_ns

    def _run_until(self, until_ns: Number) -> None:
        next_ns = self._next_ns()
        while next_ns is not None and next_ns <= until_ns:
            ending = self._ending()
            self._move_to(next_ns)
            for flow_id in ending:
                del self._flows[flow_id]
                self.finish_ns[flow_id] = next_ns
            self._ready += ending
            self._solve()
            next_ns = self._next_ns()
        self._move_to(until_ns)

    def _ending(self) -> list[int]:
        """Return the flows that end next."""
        times = {i: flow.remaining_bytes / flow.rate for i, flow in self._flows.items()}
        least = min(times.values())
        return [flow_id for flow_id, time in times.items() if time == least]

    def _move_to(self, instant_ns: Number) -> None:
        """Let all flows run at their rates up to an instant."""
        for flow in self._flows.values():
            moved = flow.rate * (instant_ns - self._clock_ns)
            flow.remaining_bytes -= moved
            for channel in flow.path:
                self._carried[channel] += moved
        self._clock_ns = instant_ns
