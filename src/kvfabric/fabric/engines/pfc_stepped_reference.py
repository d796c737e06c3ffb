"""The time-stepped engine with priority flow control in plain Python: twin of its kernels.

Moves every flow in every step, one at a time, with lists and dictionaries; skips nothing and jumps
nowhere. Slow; the oracle in tests.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_stepped_tables import BPS_PER_BYTE_PER_NS, plan_steps

_CRUMB_BYTES = 1e-3


@dataclass(slots=True)
class _Pause:
    """What a switch wanted of one sender in the last steps, newest first."""

    wanted: deque[bool]
    wants: bool = False

    def follow(self, held: float, xoff: float, xon: float) -> bool:
        """Compare with the thresholds; return whether the sender is stopped now."""
        if held > xoff:
            self.wants = True
        elif held < xon:
            self.wants = False
        self.wanted.appendleft(self.wants)
        self.wanted.pop()
        return self.wanted[-1]


@dataclass(slots=True)
class _Flow:
    """``queued[h]`` bytes wait for hop h of the path; the last byte waits at ``tail_hop``."""

    path: Sequence[int]
    size: float
    start_step: int
    left: float
    queued: list[float]
    pause: _Pause
    tail_hop: int = 0
    tail_ahead: float = 0.0


@dataclass(slots=True)
class _Served:
    """What one channel does in one step."""

    backlog: float = 0.0
    ingress: float = 0.0
    weight: float = 0.0
    sources: int = 0
    ratio: float = 0.0
    share: float = 0.0


@dataclass(slots=True)
class SteppedReference:
    """Runs a list of flows that is known ahead; see ``end_ns``."""

    capacity_bps: Sequence[float]
    params: PfcParams = field(default_factory=PfcParams)

    def end_ns(
        self,
        starts_ns: Sequence[int],
        paths: Sequence[Sequence[int]],
        sizes_bytes: Sequence[int],
        most_steps: int,
    ) -> list[float]:
        """Return when each flow ends, in ns."""
        step_ns, delay = plan_steps(self.params, max(self.capacity_bps))
        capacity = [bps / BPS_PER_BYTE_PER_NS * step_ns for bps in self.capacity_bps]
        pauses = [_Pause(deque([False] * (delay + 1))) for _ in capacity]
        flows = [
            _Flow(
                path,
                size,
                math.ceil(start / step_ns),
                size,
                [0.0] * len(path),
                _Pause(deque([False] * (delay + 1))),
            )
            for start, path, size in zip(starts_ns, paths, sizes_bytes, strict=True)
        ]
        ends = [math.nan] * len(flows)
        for step in range(most_steps):
            moving = [
                i for i, flow in enumerate(flows) if math.isnan(ends[i]) and flow.start_step <= step
            ]
            served = self._serve([flows[i] for i in moving], capacity, pauses)
            for i in moving:
                share = self._move(flows[i], served, capacity)
                if share is not None:
                    ends[i] = (step + share) * step_ns
            if not any(map(math.isnan, ends)):
                break
        return ends

    def _serve(
        self, flows: Sequence[_Flow], capacity: Sequence[float], pauses: Sequence[_Pause]
    ) -> dict[int, _Served]:
        served = {channel: _Served() for flow in flows for channel in flow.path}
        for flow in flows:
            served[flow.path[0]].sources += flow.tail_hop == 0
            for hop in range(1, len(flow.path)):
                served[flow.path[hop]].backlog += flow.queued[hop]
                served[flow.path[hop - 1]].ingress += flow.queued[hop]
        for flow in flows:
            at, ahead = served[flow.path[flow.tail_hop]], self._ahead(flow)
            if flow.tail_hop and at.backlog > ahead > 0:
                at.weight += flow.queued[flow.tail_hop] * (at.backlog / ahead - 1)
        for channel, pause in enumerate(pauses):
            here = served.get(channel, _Served())
            is_nic = any(flow.path[0] == channel for flow in flows)
            held = 0.0 if is_nic and self.params.pauses_queue_pair else here.ingress
            if pause.follow(held, self.params.xoff_bytes, self.params.xon_bytes):
                continue
            here.weight += here.backlog
            here.ratio = min(here.backlog, capacity[channel]) / here.weight if here.weight else 0.0
            here.share = capacity[channel] / here.sources if here.sources else 0.0
        return served

    def _move(
        self, flow: _Flow, served: dict[int, _Served], capacity: Sequence[float]
    ) -> float | None:
        """Move a flow by one step; return the share of it after which the flow ended."""
        queued, tail = flow.queued, flow.tail_hop
        for hop in range(len(flow.path) - 1, max(tail, 1) - 1, -1):
            at = served[flow.path[hop]]
            if not at.ratio:
                continue
            ratio, ahead = at.ratio, self._ahead(flow)
            if hop == tail:
                if at.backlog > ahead > 0:
                    ratio *= at.backlog / ahead
                flow.tail_ahead -= min(at.backlog, capacity[flow.path[hop]])
            moved = queued[hop] * min(ratio, 1.0)
            queued[hop] -= moved
            if hop + 1 < len(queued):
                queued[hop + 1] += moved
        if not tail:
            self._send(flow, served)
            return None
        if queued[tail] > _CRUMB_BYTES:
            return None
        at = served[flow.path[tail]]
        if tail + 1 == len(queued):
            return min(1.0, at.backlog / capacity[flow.path[tail]])
        queued[tail + 1] += queued[tail]
        queued[tail] = 0.0
        flow.tail_hop = tail + 1
        flow.tail_ahead = served[flow.path[tail + 1]].backlog + queued[tail + 1]
        return None

    def _send(self, flow: _Flow, served: dict[int, _Served]) -> None:
        nic, queued = served[flow.path[0]], flow.queued
        if self.params.pauses_queue_pair:
            held = queued[1] * nic.sources  # as if every flow of the NIC held as much
            if flow.pause.follow(held, self.params.xoff_bytes, self.params.xon_bytes):
                return
        sent = nic.share
        if sent <= 0:
            return
        if sent + _CRUMB_BYTES >= flow.left:
            sent = flow.left
            flow.tail_hop, flow.tail_ahead = 1, served[flow.path[1]].backlog + sent
        flow.left -= sent
        queued[1] += sent

    @staticmethod
    def _ahead(flow: _Flow) -> float:
        return max(flow.tail_ahead, flow.queued[flow.tail_hop])
