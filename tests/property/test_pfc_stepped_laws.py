"""Laws of the time-stepped engine, and of transfers under it over real fabrics."""

from collections.abc import Sequence

import numpy as np
import pytest
from flow_runs import Flow, end_instants_ns
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.choice import make_engine
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_stepped import PfcSteppedEngine
from kvfabric.fabric.engines.pfc_stepped_reference import SteppedReference
from kvfabric.fabric.networks.engine_network import EngineNetwork
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.protocol.transfer import RankTransfer, TransferPlan

GBIT = 10**9
NUM_HOSTS, NUM_LEAVES, NUM_SPINES = 8, 4, 2
# NIC ports up, leaves up, spines down, leaves down
NUM_CHANNELS = 2 * NUM_HOSTS + 2 * NUM_LEAVES * NUM_SPINES


def path_of(source: int, target: int, spine: int) -> list[int]:
    """Return the channels between two hosts of a two-tier Clos of 4 leaves and 2 spines."""
    up, down = source // 2, target // 2
    middle = []
    if up != down:
        first = NUM_HOSTS + up * NUM_SPINES + spine
        middle = [first, NUM_HOSTS + NUM_LEAVES * NUM_SPINES + down * NUM_SPINES + spine]
    return [source, *middle, NUM_CHANNELS - NUM_HOSTS + target]


@st.composite
def flows_of(draw: st.DrawFn) -> list[Flow]:
    flows: list[Flow] = []
    for _ in range(draw(st.integers(1, 12))):
        source = draw(st.integers(0, NUM_HOSTS - 1))
        target = (source + draw(st.integers(1, NUM_HOSTS - 1))) % NUM_HOSTS
        start_ns = draw(st.sampled_from([0, 0, 900, 37_777, 120_000]))
        size = draw(st.sampled_from([1, 5_000, 100_000, 500_000, 1_000_000]))
        flows.append((start_ns, path_of(source, target, draw(st.integers(0, 1))), size))
    return flows


capacities = st.lists(
    st.sampled_from([200, 400, 400, 400]), min_size=NUM_CHANNELS, max_size=NUM_CHANNELS
).map(lambda gbits: np.array(gbits, np.float64) * GBIT)
params = st.builds(
    PfcParams,
    pauses_queue_pair=st.booleans(),
    loop_delay_ns=st.sampled_from([600, 2_100, 5_000]),
)


@settings(max_examples=15)
@given(capacities, params, flows_of())
def test_kernels_do_what_the_readable_twin_does(
    capacity_bps: np.ndarray[tuple[int], np.dtype[np.float64]],
    pfc: PfcParams,
    flows: list[Flow],
) -> None:
    """The twin moves every flow in every step; the kernels skip calm ones and jump. To 2 ns."""
    ends = end_instants_ns(PfcSteppedEngine(capacity_bps, pfc), flows)
    starts, paths, sizes = zip(*flows, strict=True)
    reference = SteppedReference(capacity_bps.tolist(), pfc)
    expected = reference.end_ns(starts, paths, sizes, most_steps=20_000)
    assert ends.tolist() == pytest.approx(np.ceil(expected).tolist(), abs=2)


@settings(max_examples=40)
@given(capacities, params, flows_of())
def test_every_channel_carries_the_bytes_of_its_flows(
    capacity_bps: np.ndarray[tuple[int], np.dtype[np.float64]],
    pfc: PfcParams,
    flows: list[Flow],
) -> None:
    engine = PfcSteppedEngine(capacity_bps, pfc)
    end_instants_ns(engine, flows, checks=True)
    expected = np.zeros(NUM_CHANNELS)
    for _, path, size in flows:
        expected[list(path)] += size
    assert engine.carried_bytes().tolist() == pytest.approx(expected.tolist(), abs=1e-3)


@settings(max_examples=30)
@given(capacities, params, flows_of(), st.integers(1, 5_000))
def test_no_channel_carries_more_than_its_capacity(
    capacity_bps: np.ndarray[tuple[int], np.dtype[np.float64]],
    pfc: PfcParams,
    flows: list[Flow],
    every_ns: int,
) -> None:
    engine = PfcSteppedEngine(capacity_bps, pfc)
    before, at_ns = engine.carried_bytes(), 0
    for start_ns, path, size in sorted(flows):
        engine.start_flows(start_ns, [path], [size])
    at_ns = max(start_ns for start_ns, _, _ in flows)
    before = engine.carried_bytes()
    for _ in range(100):
        engine.advance(at_ns + every_ns)
        now = engine.carried_bytes()
        most = capacity_bps / 8e9 * (every_ns + engine.step_ns)  # a whole number of steps
        assert np.all(now - before <= most * (1 + 1e-9) + 1e-3)
        assert np.all(now - before >= -1e-3)
        before, at_ns = now, at_ns + every_ns


@settings(max_examples=30)
@given(capacities, params, flows_of())
def test_no_flow_beats_its_line_and_runs_repeat(
    capacity_bps: np.ndarray[tuple[int], np.dtype[np.float64]],
    pfc: PfcParams,
    flows: list[Flow],
) -> None:
    ends = end_instants_ns(PfcSteppedEngine(capacity_bps, pfc), flows)
    assert end_instants_ns(PfcSteppedEngine(capacity_bps, pfc), flows).tolist() == ends.tolist()
    for (start_ns, path, size), end_ns in zip(flows, ends.tolist(), strict=True):
        assert end_ns - start_ns >= int(size * 8e9 / capacity_bps[list(path)].min())


FABRICS = {
    kind: build_topology(kind, 64, radix=16, nic_rate_bps=400 * GBIT)
    for kind in ("clos", "roft", "zcube")
}
gpus = st.integers(0, 63)
parts = st.builds(RankTransfer, gpus, gpus, st.sampled_from([0, 1, 7, 80_001, 1_000_000]))


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(FABRICS)),
    st.sampled_from(["ecmp", "spray", "assigned"]),
    st.sampled_from(["max-min", "pfc-stepped"]),
    st.lists(st.tuples(st.integers(0, 50_000), st.lists(parts, max_size=4)), max_size=10),
    st.sampled_from([None, 1, 30_000]),
)
def test_transfers_end_once_and_leave_nothing(
    kind: str,
    policy: str,
    engine: str,
    drawn: Sequence[tuple[int, list[RankTransfer]]],
    cancel_after: int | None,
) -> None:
    """Each ends once, or is cancelled; then nothing moves and no load is left."""
    balancer = make_load_balancer(policy, FABRICS[kind], queue_pairs=2, seed=1)
    network = EngineNetwork(balancer, make_engine(engine, balancer.channel_capacity_bps))
    todo = sorted((start_ns, i) for i, (start_ns, _) in enumerate(drawn))
    done: set[int] = set()
    cancelled: set[int] = set()
    for now_ns, i in todo:
        while (next_ns := network.next_completion_ns()) is not None and next_ns <= now_ns:
            ended = network.advance(next_ns)
            assert not done & set(ended), "ended twice"
            done |= set(ended)
        network.start(TransferPlan(i, tuple(drawn[i][1])), now_ns)
        network.check_invariants()
    last_ns = todo[-1][0] if todo else 0
    if todo and cancel_after is not None:
        done |= set(network.advance(last_ns + cancel_after))
        cancelled = {i for _, i in todo} - done
        for i in cancelled:
            network.cancel(i, last_ns + cancel_after)
    while (next_ns := network.next_completion_ns()) is not None:
        ended = network.advance(next_ns)
        assert not (done | cancelled) & set(ended)
        done |= set(ended)
        network.check_invariants()
    assert done | cancelled == set(range(len(drawn)))
    assert network.moved_bytes == sum(part.num_bytes for _, plan in drawn for part in plan)
    assert getattr(balancer, "num_loaded_channels", 0) == 0
