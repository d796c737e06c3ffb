"""Laws of transfers over real fabrics under every policy: INV-11 and INV-12, and no leftovers."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.graph import FloatArray, Topology
from kvfabric.fabric.networks.engine_network import EngineNetwork
from kvfabric.fabric.networks.network import FabricNetwork
from kvfabric.fabric.routes.load_balancing import LoadBalancer, SubFlow, make_load_balancer
from kvfabric.fabric.routes.routing_tables import PathRules
from kvfabric.protocol.transfer import RankTransfer, TransferPlan
from kvfabric.units import ceil_div

GBIT = 10**9
NIC_BPS = 400 * GBIT
NUM_GPUS = 64
FABRICS = {
    kind: build_topology(kind, NUM_GPUS, radix=radix, nic_rate_bps=NIC_BPS)
    for kind, radix in (("clos", 16), ("roft", 16), ("zcube", 16))
}
POLICIES = ("ecmp", "spray", "assigned")
KINDS = tuple(FABRICS)

gpus = st.integers(0, NUM_GPUS - 1)
parts = st.builds(RankTransfer, gpus, gpus, st.sampled_from([0, 1, 7, 5_000, 80_001, 3_000_000]))


@st.composite
def transfers(draw: st.DrawFn) -> list[tuple[int, TransferPlan, int | None]]:
    """Draw ``(start, transfer, ns until it is cancelled or None)`` in order of start."""
    now_ns = 0
    drawn: list[tuple[int, TransferPlan, int | None]] = []
    for transfer_id in range(draw(st.integers(1, 12))):
        now_ns += draw(st.sampled_from([0, 0, 1, 900, 40_000]))
        plan = TransferPlan(transfer_id, tuple(draw(st.lists(parts, max_size=4))))
        cancel_after = draw(st.sampled_from([None, None, None, 1, 1200, 70_000]))
        drawn.append((now_ns, plan, cancel_after))
    return drawn


def network_on(topology: Topology, policy: str) -> FabricNetwork:
    return FabricNetwork(make_load_balancer(policy, topology, queue_pairs=2, seed=1))


def drive(
    network: FabricNetwork | EngineNetwork, drawn: list[tuple[int, TransferPlan, int | None]]
) -> dict[int, int]:
    """Start, cancel and advance in order of time; return the instant each transfer was done.

    Checks the network (INV-12) after every event, and that nothing completes twice or after its
    cancellation.
    """
    todo = [(start_ns, 1, plan.transfer_id) for start_ns, plan, _ in drawn]
    todo += [(s + after, 0, plan.transfer_id) for s, plan, after in drawn if after is not None]
    todo.sort()
    plans = {plan.transfer_id: plan for _, plan, _ in drawn}
    done: dict[int, int] = {}
    cancelled: set[int] = set()
    while todo or network.next_completion_ns() is not None:
        next_ns = network.next_completion_ns()
        if next_ns is not None and (not todo or next_ns <= todo[0][0]):
            for transfer_id in network.advance(next_ns):
                assert transfer_id not in done, "completed twice"
                assert transfer_id not in cancelled, "completed after it was cancelled"
                done[transfer_id] = next_ns
        else:
            now_ns, is_start, transfer_id = todo.pop(0)
            if is_start:
                network.start(plans[transfer_id], now_ns)
            elif transfer_id not in done:
                network.cancel(transfer_id, now_ns)
                cancelled.add(transfer_id)
        network.check_invariants()
    assert done.keys() | cancelled == plans.keys(), "neither completed nor cancelled"
    return done


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.sampled_from(POLICIES), transfers())
def test_transfers_complete_exactly_once_and_every_event_leaves_fair_rates(
    kind: str, policy: str, drawn: list[tuple[int, TransferPlan, int | None]]
) -> None:
    """INV-12, checked by ``drive`` after every start, cancellation and completion."""
    network = network_on(FABRICS[kind], policy)
    drive(network, drawn)
    assert network.moved_bytes == sum(plan.num_bytes for _, plan, _ in drawn)


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.sampled_from(POLICIES), transfers())
def test_bytes_that_leave_the_sources_arrive_at_the_destinations(
    kind: str, policy: str, drawn: list[tuple[int, TransferPlan, int | None]]
) -> None:
    """INV-11: by GPU, over its up and down channels, nothing is lost or made up."""
    topology = FABRICS[kind]
    network = network_on(topology, policy)
    drive(network, [(start_ns, plan, None) for start_ns, plan, _ in drawn])
    sent, received = [0] * NUM_GPUS, [0] * NUM_GPUS
    for _, plan, _ in drawn:
        for part in plan.parts:
            if not topology.same_server(part.src_gpu, part.dst_gpu):
                sent[part.src_gpu] += part.num_bytes
                received[part.dst_gpu] += part.num_bytes
    carried = {
        load.name: load.carried_bytes
        for load in network.busiest_links(10**9, count=10 * topology.num_channels)
    }
    for gpu in range(NUM_GPUS):
        up = [size for name, size in carried.items() if name.startswith(f"GPU {gpu} port ")]
        down = [size for name, size in carried.items() if f"-> GPU {gpu} port " in name]
        assert len(up) == len(down) == topology.ports_per_nic
        assert sum(up) == pytest.approx(sent[gpu], abs=2)
        assert sum(down) == pytest.approx(received[gpu], abs=2)


class Ledger:
    """A balancer that counts every sub-flow it hands out and takes back."""

    def __init__(self, inner: LoadBalancer) -> None:
        self.inner = inner
        self.out: Counter[SubFlow] = Counter()

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def channel_capacity_bps(self) -> FloatArray:
        return self.inner.channel_capacity_bps

    def route(
        self, src_gpu: int, dst_gpu: int, num_bytes: int, flow_key: int
    ) -> tuple[SubFlow, ...]:
        subflows = self.inner.route(src_gpu, dst_gpu, num_bytes, flow_key)
        self.out.update(subflows)
        return subflows

    def release(self, subflows: Sequence[SubFlow]) -> None:
        self.out.subtract(subflows)
        assert all(self.out[subflow] >= 0 for subflow in subflows), "released twice"
        self.inner.release(subflows)

    def channel_name(self, channel: int) -> str:
        return self.inner.channel_name(channel)

    @property
    def rules(self) -> PathRules:
        return self.inner.rules


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.sampled_from(POLICIES), transfers())
def test_load_of_the_balancer_returns_to_zero(
    kind: str, policy: str, drawn: list[tuple[int, TransferPlan, int | None]]
) -> None:
    """What was routed is released, once each, when it is done and when it is cancelled.

    Of the readable network by count; the compiled one checks its loads (I1) after every event.
    """
    ledger = Ledger(make_load_balancer(policy, FABRICS[kind], queue_pairs=2, seed=1))
    drive(EngineNetwork(ledger, MaxMinEngine(ledger.channel_capacity_bps)), drawn)
    assert not any(ledger.out.values())
    drive(network_on(FABRICS[kind], policy), drawn)


@settings(max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(POLICIES),
    st.integers(1, 4),
    st.sampled_from([(1, 1), (4096, 4168)]),
    transfers(),
)
def test_compiled_network_does_what_the_readable_one_does(
    kind: str,
    policy: str,
    queue_pairs: int,
    frame: tuple[int, int],
    drawn: list[tuple[int, TransferPlan, int | None]],
) -> None:
    """Same instants, same order, same bytes on every channel, to the last bit."""
    payload, on_wire = frame
    balancers = [
        make_load_balancer(policy, FABRICS[kind], queue_pairs=queue_pairs, seed=4) for _ in range(2)
    ]
    network = FabricNetwork(balancers[0], payload_bytes=payload, frame_bytes=on_wire)
    reference = EngineNetwork(
        balancers[1],
        MaxMinEngine(balancers[1].channel_capacity_bps),
        payload_bytes=payload,
        frame_bytes=on_wire,
    )
    assert list(drive(network, drawn).items()) == list(drive(reference, drawn).items())
    assert network.carried_bytes().tolist() == reference.carried_bytes().tolist()


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(POLICIES),
    gpus,
    gpus,
    st.integers(1, 10**9),
    st.integers(0, 10**12),
)
def test_lone_transfer_takes_its_bytes_over_the_rate(
    kind: str, policy: str, src: int, dst: int, num_bytes: int, start_ns: int
) -> None:
    topology = FABRICS[kind]
    # one queue pair: with more, ecmp may hash two of them onto one slower fabric cable
    balancer = make_load_balancer(policy, topology, queue_pairs=1)
    network = FabricNetwork(balancer)
    plan = TransferPlan(1, (RankTransfer(src, dst, num_bytes),))
    done = drive(network, [(start_ns, plan, None)])
    if topology.same_server(src, dst):
        assert done == {1: start_ns}
        return
    ports = topology.ports_per_nic
    longest_bytes = ceil_div(num_bytes, ports)  # ports share evenly, to the byte
    assert done == {1: start_ns + ceil_div(longest_bytes * 8 * ports * 10**9, NIC_BPS)}


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.sampled_from(POLICIES), transfers(), st.integers(0, 300_000))
def test_cancelling_everything_leaves_nothing_behind(
    kind: str,
    policy: str,
    drawn: list[tuple[int, TransferPlan, int | None]],
    wait_ns: int,
) -> None:
    network = network_on(FABRICS[kind], policy)
    now_ns = max(start_ns for start_ns, _, _ in drawn)
    for start_ns, plan, _ in drawn:
        while (next_ns := network.next_completion_ns()) is not None and next_ns <= start_ns:
            network.advance(next_ns)
        network.start(plan, start_ns)
    network.advance(now_ns + wait_ns)
    for _, plan, _ in drawn:
        network.cancel(plan.transfer_id, now_ns + wait_ns)
    assert network.next_completion_ns() is None
    network.check_invariants()


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.sampled_from(POLICIES), transfers())
def test_no_transfer_beats_its_line(
    kind: str, policy: str, drawn: list[tuple[int, TransferPlan, int | None]]
) -> None:
    """Causality: no part is there before its bytes have passed the NIC at full rate."""
    topology = FABRICS[kind]
    network = network_on(topology, policy)
    done = drive(network, drawn)
    for start_ns, plan, _ in drawn:
        sizes = [
            part.num_bytes
            for part in plan.parts
            if not topology.same_server(part.src_gpu, part.dst_gpu)
        ]
        if plan.transfer_id in done and sizes:
            least_ns = max(sizes) * 8 * 10**9 // NIC_BPS
            assert done[plan.transfer_id] - start_ns >= least_ns
