"""Laws of the event-driven PFC engine on small random networks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.engines.pfc import PfcEngine
from kvfabric.fabric.engines.pfc_params import PfcParams

NUM_NICS, NUM_CHANNELS = 5, 12


@dataclass(frozen=True, slots=True)
class Event:
    """Start flows at an instant, or cancel the flows with these ids."""

    now_ns: int
    paths: tuple[tuple[int, ...], ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """A network and what happens on it, in order of time."""

    capacity_bps: tuple[int, ...]
    params: PfcParams
    events: tuple[Event, ...]


CAPACITIES = st.sampled_from([100, 200, 400, 400, 800]).map(lambda gbps: gbps * 10**9)
SIZES = st.one_of(st.sampled_from([1, 6000, 6000, 12000]), st.integers(1, 3_000_000))
GAPS = st.one_of(st.sampled_from([0, 0, 1000, 2000]), st.integers(0, 200_000))


@st.composite
def scripts(draw: st.DrawFn, *, with_cancellation: bool = True, is_cyclic: bool = False) -> Script:
    """Draw up to 12 events of up to 4 flows over 5 NIC ports and 7 other channels.

    Unless the routes are to be cyclic, paths cross channels in rising order.
    """
    capacity_bps = tuple(draw(st.lists(CAPACITIES, min_size=12, max_size=12)))
    params = PfcParams(
        loop_delay_ns=draw(st.sampled_from([0, 2100])),
        pauses_queue_pair=draw(st.booleans()),
        num_priorities=draw(st.sampled_from([1, 1, 3])),
    )
    fabric = st.integers(NUM_NICS, NUM_CHANNELS - 1)
    rest = st.lists(fabric, min_size=1, max_size=4, unique=True)
    rest = rest if is_cyclic else rest.map(sorted)
    paths = st.tuples(st.integers(0, NUM_NICS - 1), rest).map(lambda path: (path[0], *path[1]))
    flow = st.tuples(paths, SIZES, st.integers(0, params.num_priorities - 1))
    now_ns, num_started, events = 0, 0, []
    for _ in range(draw(st.integers(1, 12))):
        now_ns += draw(GAPS)
        if num_started and with_cancellation and draw(st.integers(0, 3)) == 0:
            ids = st.integers(0, num_started - 1)
            events.append(Event(now_ns, cancelled=tuple(draw(st.lists(ids, max_size=4)))))
        else:
            flows = draw(st.lists(flow, min_size=1, max_size=4))
            num_started += len(flows)
            columns = [tuple(column) for column in zip(*flows, strict=True)]
            events.append(Event(now_ns, *columns))
    return Script(capacity_bps, params, tuple(events))


def new_engine(script: Script, max_sweeps: int = 150) -> PfcEngine:
    return PfcEngine(np.array(script.capacity_bps), script.params, max_sweeps=max_sweeps)


def apply_event(engine: PfcEngine, event: Event) -> None:
    if event.paths:
        engine.start_flows(event.now_ns, event.paths, event.sizes_bytes, event.priorities)
    else:
        engine.cancel_flows(event.now_ns, event.cancelled)


def completions(engine: PfcEngine, until_ns: int = 10**18) -> Iterator[tuple[int, int]]:
    """Advance from one completion to the next and yield (instant, flow id)."""
    while (now_ns := engine.next_completion_ns()) is not None and now_ns <= until_ns:
        ended = engine.advance(now_ns)
        assert ended, "an announced completion must come"
        engine.check_invariants()
        yield from ((now_ns, flow_id) for flow_id in ended)


def play(engine: PfcEngine, script: Script) -> list[tuple[int, int]]:
    """Run a script to its end; return the completions in order."""
    ended: list[tuple[int, int]] = []
    for event in script.events:
        ended += completions(engine, event.now_ns)
        apply_event(engine, event)
        engine.check_invariants()
    return ended + list(completions(engine))


# 1 and 3 sweeps are far too few to converge: rates must fit every channel all the same.
@pytest.mark.parametrize("max_sweeps", [1, 3, 150])
@given(script=scripts())
def test_rates_fit_every_channel_whether_a_solve_converges_or_not(
    max_sweeps: int, script: Script
) -> None:
    """INV-12, its first half, after every event (``check_invariants``)."""
    engine = new_engine(script, max_sweeps)
    play(engine, script)
    assert engine.num_active == 0
    assert 0 <= engine.num_unconverged <= engine.num_solves


@given(script=scripts(is_cyclic=True))
@settings(max_examples=50)
def test_rates_fit_every_channel_on_cyclic_routes(script: Script) -> None:
    play(new_engine(script), script)


@given(script=scripts(with_cancellation=False))
def test_a_channel_carries_the_sizes_of_its_completed_flows(script: Script) -> None:
    engine = new_engine(script)
    ended = play(engine, script)
    expected = [0] * NUM_CHANNELS
    num_flows = 0
    for event in script.events:
        num_flows += len(event.paths)
        for path, size_bytes in zip(event.paths, event.sizes_bytes, strict=True):
            for channel in path:
                expected[channel] += size_bytes
    assert engine.carried_bytes().tolist() == expected
    assert sorted(flow_id for _, flow_id in ended) == list(range(num_flows))


@given(script=scripts())
def test_no_flow_is_faster_than_its_slowest_channel(script: Script) -> None:
    engine = new_engine(script)
    finish_ns = {flow_id: now_ns for now_ns, flow_id in play(engine, script)}
    flow_id = 0
    for event in script.events:
        for path, size_bytes in zip(event.paths, event.sizes_bytes, strict=True):
            slowest = min(script.capacity_bps[channel] for channel in path)
            least_ns = size_bytes * 8e9 / slowest
            if flow_id in finish_ns:
                assert finish_ns[flow_id] >= event.now_ns + least_ns - 1e-3
            flow_id += 1


@given(script=scripts())
def test_idle_engine_has_no_pause_no_price_and_no_flow_left(script: Script) -> None:
    """Cancelled and completed flows leave nothing behind, in any order."""
    engine = new_engine(script)
    play(engine, script)
    last_ns = engine._flows._now_ns
    before = engine.paused_ns()
    assert np.all(before >= 0)
    assert np.all(before <= last_ns * script.params.num_priorities * (1 + 1e-9))
    engine.advance(last_ns + 10**9)
    assert engine.paused_ns().tolist() == before.tolist()
    queues = engine._flows.tables.queues
    assert np.all(queues["first_hop"] == -1)
    assert np.all(queues["price"] == 0)
    assert engine._flows.tables.num_slots == 64


@given(script=scripts(), instants_ns=st.lists(st.integers(0, 2_000_000), max_size=20))
def test_splitting_advance_changes_nothing(script: Script, instants_ns: list[int]) -> None:
    whole, split = new_engine(script), new_engine(script)
    stops = sorted(instants_ns)
    whole_ended: list[int] = []
    split_ended: list[int] = []
    for event in script.events:
        while stops and stops[0] <= event.now_ns:
            split_ended += split.advance(stops.pop(0))
        split_ended += split.advance(event.now_ns)
        whole_ended += whole.advance(event.now_ns)
        apply_event(split, event)
        apply_event(whole, event)
    assert split_ended == whole_ended
    assert split.next_completion_ns() == whole.next_completion_ns()
    assert split.carried_bytes().tolist() == whole.carried_bytes().tolist()
    assert list(completions(split)) == list(completions(whole))


@given(script=scripts())
def test_same_script_gives_the_same_run(script: Script) -> None:
    first, second = new_engine(script), new_engine(script)
    assert play(first, script) == play(second, script)
    assert first.carried_bytes().tolist() == second.carried_bytes().tolist()
    assert first.paused_ns().tolist() == second.paused_ns().tolist()
    assert first.peak_queue_bytes().tolist() == second.peak_queue_bytes().tolist()


@given(script=scripts(with_cancellation=False))
def test_flows_that_share_nothing_run_as_under_max_min(script: Script) -> None:
    """Every flow of the script gets a NIC port and channels of its own."""
    flows = [
        (path, size_bytes)
        for event in script.events
        for path, size_bytes in zip(event.paths, event.sizes_bytes, strict=True)
    ]
    capacity_bps: list[int] = []
    paths: list[range] = []
    for path, _ in flows:
        first = len(capacity_bps)
        paths.append(range(first, first + len(path)))
        # no channel after the NIC port is slower: no queue forms
        capacity_bps += [
            max(script.capacity_bps[hop], script.capacity_bps[path[0]]) for hop in path
        ]
    capacity = np.array(capacity_bps)
    params = replace(script.params, num_priorities=1)
    pfc, fair = PfcEngine(capacity, params), MaxMinEngine(capacity)
    sizes = [size_bytes for _, size_bytes in flows]
    pfc.start_flows(0, paths, sizes)
    fair.start_flows(0, paths, sizes)
    assert [pfc.rate_bps(i) for i in range(len(flows))] == pytest.approx(
        [fair.rate_bps(i) for i in range(len(flows))], rel=1e-12
    )
    assert pfc.num_victims() == 0
    assert not pfc.paused_ns().any()


def test_many_flows_on_one_port_share_it_as_under_max_min() -> None:
    capacity = np.full(40, 400e9)
    pfc, fair = PfcEngine(capacity), MaxMinEngine(capacity)
    paths = [[0, 1 + i % 39] for i in range(200)]
    for engine in (pfc, fair):
        engine.start_flows(0, paths, [1_000_000 + i for i in range(200)])
    while (now_ns := fair.next_completion_ns()) is not None:
        assert pfc.next_completion_ns() == pytest.approx(now_ns, abs=1)
        assert pfc.advance(now_ns + 1) == fair.advance(now_ns + 1)
