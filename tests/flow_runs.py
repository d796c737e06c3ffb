"""Runs lists of flows through any flow engine."""

from collections.abc import Sequence

import numpy as np

from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.fabric.graph import IntArray

Flow = tuple[int, Sequence[int], int]  # (start in ns, path, bytes)


def end_instants_ns(engine: FlowEngine, flows: Sequence[Flow], *, checks: bool = False) -> IntArray:
    """Return when each flow ends, all starts and ends told in order of time.

    Args:
        engine: idle.
        flows: in any order.
        checks: whether to check the invariants after every event.
    """
    order = sorted(range(len(flows)), key=lambda i: flows[i][0])
    flow_of_id: dict[int, int] = {}
    ends = np.full(len(flows), -1)
    last_ns = -1
    for i in order:
        start_ns, path, num_bytes = flows[i]
        is_later, last_ns = start_ns > last_ns, start_ns
        while (
            is_later
            and (next_ns := engine.next_completion_ns()) is not None
            and next_ns <= start_ns
        ):
            _note(engine, next_ns, flow_of_id, ends)
        (flow_id,) = engine.start_flows(start_ns, [path], [num_bytes])
        flow_of_id[flow_id] = i
        if checks:
            engine.check_invariants()
    while (next_ns := engine.next_completion_ns()) is not None:
        _note(engine, next_ns, flow_of_id, ends)
        if checks:
            engine.check_invariants()
    assert engine.num_active == 0
    assert (ends >= 0).all(), "every flow ends"
    return ends


def _note(engine: FlowEngine, now_ns: int, flow_of_id: dict[int, int], ends: IntArray) -> None:
    for flow_id in engine.advance(now_ns):
        i = flow_of_id[flow_id]
        assert ends[i] < 0, "a flow ends once"
        ends[i] = now_ns
