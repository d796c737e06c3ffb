"""Laws of the max-min engine on small networks with arrivals, cancellations and equal instants."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.fabric.engines.maxmin import MaxMinEngine, solve_flows
from kvfabric.fabric.engines.maxmin_reference import ReferenceEngine

Engine = MaxMinEngine | ReferenceEngine[Fraction]

# 0 solves all flows at every event, 1 only those whose rate can change: both must be right.
FULL_SOLVE_ABOVE = [0.0, 1 / 3, 1.0]


@dataclass(frozen=True, slots=True)
class Event:
    """Start flows at an instant, or cancel the flows with these ids."""

    now_ns: int
    paths: tuple[tuple[int, ...], ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """A network and what happens on it, in order of time."""

    capacity_bps: tuple[int, ...]
    events: tuple[Event, ...]


CAPACITIES = st.sampled_from([8, 8, 16, 24, 56, 400]).map(lambda gbps: gbps * 10**9)
SIZES = st.one_of(st.sampled_from([1, 6000, 6000, 12000]), st.integers(1, 3_000_000))
GAPS = st.one_of(st.sampled_from([0, 0, 1000, 2000]), st.integers(0, 200_000))


@st.composite
def scripts(draw: st.DrawFn, *, with_cancellation: bool = True) -> Script:
    """Draw up to 12 events of up to 4 flows each, over up to 6 channels."""
    capacity_bps = draw(st.lists(CAPACITIES, min_size=1, max_size=6))
    channels = st.integers(0, len(capacity_bps) - 1)
    paths = st.lists(channels, min_size=1, max_size=5, unique=True).map(tuple)
    now_ns, num_started, events = 0, 0, []
    for _ in range(draw(st.integers(1, 12))):
        now_ns += draw(GAPS)
        if num_started and with_cancellation and draw(st.integers(0, 3)) == 0:
            ids = st.integers(0, num_started - 1)
            events.append(Event(now_ns, cancelled=tuple(draw(st.lists(ids, max_size=4)))))
        else:
            flows = draw(st.lists(st.tuples(paths, SIZES), min_size=1, max_size=4))
            num_started += len(flows)
            events.append(Event(now_ns, tuple(p for p, _ in flows), tuple(s for _, s in flows)))
    return Script(tuple(capacity_bps), tuple(events))


def new_engine(script: Script, full_solve_above: float = 1 / 3) -> MaxMinEngine:
    return MaxMinEngine(np.array(script.capacity_bps), full_solve_above=full_solve_above)


def apply_event(engine: Engine, event: Event) -> range:
    """Return the ids of the flows it starts."""
    if event.paths:
        return engine.start_flows(event.now_ns, event.paths, event.sizes_bytes)
    engine.cancel_flows(event.now_ns, event.cancelled)
    return range(0)


def completions(engine: Engine, until_ns: float = math.inf) -> Iterator[tuple[int, int]]:
    """Advance from one completion to the next and yield (instant, flow id)."""
    while (now_ns := engine.next_completion_ns()) is not None and now_ns <= until_ns:
        ended = engine.advance(now_ns)
        assert ended, "an announced completion must come"
        yield from ((now_ns, flow_id) for flow_id in ended)


def play(engine: Engine, script: Script) -> list[tuple[int, int]]:
    """Run a script to its end; return the completions in order."""
    ended: list[tuple[int, int]] = []
    for event in script.events:
        ended += completions(engine, event.now_ns)
        apply_event(engine, event)
    return ended + list(completions(engine))


def is_rounded_up(rounded_ns: int, exact_ns: Fraction) -> bool:
    """Tell whether an instant is rounded up, if it must be, beyond a thousandth of a ns."""
    noise = Fraction(1, 1000)
    return math.ceil(exact_ns - noise) <= rounded_ns <= math.ceil(exact_ns + noise)


@pytest.mark.parametrize("full_solve_above", FULL_SOLVE_ABOVE)
@given(script=scripts())
def test_completions_equal_exact_progressive_filling(
    full_solve_above: float, script: Script
) -> None:
    exact = ReferenceEngine(script.capacity_bps, Fraction)
    play(exact, script)
    ended = play(new_engine(script, full_solve_above), script)
    assert sorted(flow_id for _, flow_id in ended) == sorted(exact.finish_ns)
    for rounded_ns, flow_id in ended:
        assert is_rounded_up(rounded_ns, exact.finish_ns[flow_id])


@pytest.mark.parametrize("full_solve_above", FULL_SOLVE_ABOVE)
@given(script=scripts())
def test_rates_are_max_min_fair_after_every_event(full_solve_above: float, script: Script) -> None:
    """INV-12, and the rates are those of the exact solution, which is unique."""
    engine = new_engine(script, full_solve_above)
    exact = ReferenceEngine(script.capacity_bps, Fraction)
    alive: set[int] = set()
    for event in script.events:
        for _, flow_id in completions(engine, event.now_ns):
            alive.remove(flow_id)
            engine.check_invariants()
        alive |= set(apply_event(engine, event))
        alive -= set(event.cancelled)
        apply_event(exact, event)
        engine.check_invariants()
        for flow_id in alive:
            assert engine.rate_bps(flow_id) == pytest.approx(
                float(exact.rate_bps(flow_id)), rel=1e-9
            )


@given(script=scripts(with_cancellation=False))
def test_batch_equals_exact_progressive_filling(script: Script) -> None:
    exact = ReferenceEngine(script.capacity_bps, Fraction)
    play(exact, script)
    starts = [event.now_ns for event in script.events for _ in event.paths]
    paths = [path for event in script.events for path in event.paths]
    sizes = [size for event in script.events for size in event.sizes_bytes]
    for full_solve_above in FULL_SOLVE_ABOVE:
        finish_s = solve_flows(
            np.array(script.capacity_bps),
            np.cumsum([0, *map(len, paths)]),
            np.array([channel for path in paths for channel in path]),
            np.array(starts) / 1e9,
            np.array(sizes),
            full_solve_above=full_solve_above,
        )
        expected_s = [float(exact.finish_ns[flow_id]) / 1e9 for flow_id in range(len(paths))]
        # A flow that ends within the slack (1e-6 ns) of another ends with it.
        assert finish_s == pytest.approx(expected_s, rel=1e-9, abs=2e-15)


@given(script=scripts())
def test_carried_bytes_equal_the_exact_ones_at_every_event(script: Script) -> None:
    engine, exact = new_engine(script, 1.0), ReferenceEngine(script.capacity_bps, Fraction)
    for event in script.events:
        apply_event(engine, event)
        apply_event(exact, event)
        expected = [float(carried) for carried in exact.carried_bytes()]
        assert engine.carried_bytes() == pytest.approx(expected, rel=1e-9, abs=1e-3)


@given(script=scripts(with_cancellation=False))
def test_a_channel_carries_the_sizes_of_its_completed_flows(script: Script) -> None:
    engine = new_engine(script)
    play(engine, script)
    expected = [0] * len(script.capacity_bps)
    for event in script.events:
        for path, size_bytes in zip(event.paths, event.sizes_bytes, strict=True):
            for channel in path:
                expected[channel] += size_bytes
    assert engine.carried_bytes().tolist() == expected


@given(script=scripts(), instants_ns=st.lists(st.integers(0, 2_000_000), max_size=20))
def test_splitting_advance_changes_nothing(script: Script, instants_ns: list[int]) -> None:
    whole, split = new_engine(script), new_engine(script)
    end_ns = max(script.events[-1].now_ns, *instants_ns, 0)
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
    for stop_ns in stops:
        split_ended += split.advance(stop_ns)
    whole_ended += whole.advance(end_ns)
    split_ended += split.advance(end_ns)
    assert split_ended == whole_ended
    assert split.next_completion_ns() == whole.next_completion_ns()
    assert split.carried_bytes().tolist() == whole.carried_bytes().tolist()
    assert list(completions(split)) == list(completions(whole))


@given(script=scripts())
def test_same_script_gives_the_same_run(script: Script) -> None:
    first, second = new_engine(script), new_engine(script)
    assert play(first, script) == play(second, script)
    assert first.carried_bytes().tolist() == second.carried_bytes().tolist()


@pytest.mark.parametrize("seed", range(4))
def test_large_network_stays_fair_in_every_mode(seed: int) -> None:
    """Hundreds of flows at once: tables and heap grow, flows leave from anywhere, modes agree."""
    rng = np.random.default_rng(seed)
    capacity_bps = rng.integers(1, 5, 60) * 10**11
    modes = [MaxMinEngine(capacity_bps, full_solve_above=share) for share in FULL_SOLVE_ABOVE]
    now_ns = 0
    for _ in range(60):
        now_ns += int(rng.integers(0, 2000))
        num_new = int(rng.integers(1, 12))
        paths = [rng.choice(60, int(rng.integers(1, 11)), replace=False) for _ in range(num_new)]
        sizes = rng.integers(1, 10**6, num_new).tolist()
        ended = [engine.advance(now_ns) for engine in modes]
        ids = [engine.start_flows(now_ns, [p.tolist() for p in paths], sizes) for engine in modes]
        assert ended[0] == ended[1] == ended[2]
        for engine in modes:
            engine.check_invariants()
        for flow_id in ids[0]:
            rates = [engine.rate_bps(flow_id) for engine in modes]
            assert rates == pytest.approx([rates[0]] * 3, rel=1e-9)
        cancelled = rng.choice(ids[0].stop, ids[0].stop // 20, replace=False).tolist()
        for engine in modes:
            engine.cancel_flows(now_ns, cancelled)
            engine.check_invariants()
    runs = [list(completions(engine)) for engine in modes]
    assert runs[0] == runs[1] == runs[2]
