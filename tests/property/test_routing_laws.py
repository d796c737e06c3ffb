"""Compiled routing finds, for any fabric and message, the sub-flows of the readable balancers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin_flows import FlowSet
from kvfabric.fabric.failures import parse_failures, without
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import (
    POLICIES,
    AssigningBalancer,
    EcmpBalancer,
    SubFlow,
    make_load_balancer,
)
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.router import Router
from kvfabric.protocol.transfer import RankTransfer

GBIT = 10**9


def build(
    kind: str, num_gpus: int, radix: int, servers: int, tiers: int | None, **shape: int
) -> Topology:
    return build_topology(
        kind,
        num_gpus,
        radix=radix,
        nic_rate_bps=1200 * GBIT,
        gpus_per_server=servers,
        num_tiers=tiers,
        shape=shape,
    )


def failed(topology: Topology, *texts: str) -> Topology:
    return without(topology, parse_failures(topology, texts))


FABRICS = (
    build("clos", 24, 8, 2, None),
    build("clos", 128, 8, 2, 3),
    build("roft", 48, 8, 4, None),
    build("zcube", 64, 16, 8, None),
    build("zcube", 36, 12, 2, None),
    build("zcube", 64, 12, 4, 2),
    build("rail-only", 32, 8, 4, None),
    build("hpn", 128, 32, 8, None),
    build("zcube-recursive", 27, 24, 3, None, k=3),
    build("bcube", 16, 4, 4, None),
    build("bcube", 27, 3, 3, None, k=3),
    build("dragonfly", 36, 8, 2, None),
    build("jellyfish", 32, 8, 2, None),
)
FAILED_FABRICS = (
    failed(FABRICS[2], "switch:leaf 0", "link:leaf 3 - spine 0"),
    failed(FABRICS[3], "switch:multi-rail leaf 0"),
    failed(FABRICS[3], "link:multi-rail leaf 0 - single-rail leaf 1", "port:GPU 3 port 0"),
    failed(FABRICS[6], "switch:leaf 0", "switch:leaf 2"),
    failed(FABRICS[9], "switch:leaf 0", "port:GPU 6 port 1"),
)

gpus = st.integers(0, 10**6)
parts = st.builds(RankTransfer, gpus, gpus, st.one_of(st.integers(0, 9), st.integers(0, 10**12)))


def within(part: RankTransfer, topology: Topology) -> RankTransfer:
    num = topology.num_gpus
    return RankTransfer(part.src_gpu % num, part.dst_gpu % num, part.num_bytes)


def subflows_of(router: Router, num_new: int) -> list[SubFlow]:
    """Return the flows of the last transfer as the balancers write them."""
    return [
        SubFlow(tuple(router.path[first : first + num_hops].tolist()), num_bytes)
        for first, num_hops, num_bytes in router.new[["first_hop", "num_hops", "payload_bytes"]][
            :num_new
        ].tolist()
    ]


@settings(max_examples=150)
@given(
    st.sampled_from(FABRICS + FAILED_FABRICS),
    st.sampled_from(tuple(POLICIES)),
    st.integers(1, 5),
    st.integers(0, 2**64 - 1),
    st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.lists(parts, max_size=20), st.booleans()),
        min_size=1,
        max_size=8,
    ),
)
def test_router_finds_the_subflows_of_the_balancer(
    topology: Topology,
    policy: str,
    queue_pairs: int,
    seed: int,
    drawn: list[tuple[int, list[RankTransfer], bool]],
) -> None:
    """Bit for bit; some transfers are released at once, so that assigned loads come and go."""
    try:
        balancer = make_load_balancer(
            policy, topology, queue_pairs=queue_pairs, seed=seed, flowlet_bytes=10**10
        )
    except UnsupportedError:
        return
    router = Router(balancer.rules)
    flows = FlowSet(balancer.channel_capacity_bps, 1.0)
    for transfer_id, drawn_parts, is_released in drawn:
        wanted = [within(part, topology) for part in drawn_parts]
        num_new, num_bytes = router.route(transfer_id, wanted, 3)
        expected = [
            subflow
            for rank, part in enumerate(wanted)
            for subflow in balancer.route(
                part.src_gpu, part.dst_gpu, part.num_bytes, transfer_id << 16 | rank
            )
        ]
        assert subflows_of(router, num_new) == expected
        assert num_bytes == sum(part.num_bytes for part in wanted)
        assert set(router.new["group"][:num_new].tolist()) <= {3}
        if is_released and num_new:
            balancer.release(expected)
            flows.start(router.new, router.path, num_new, router.longest_hops)
            router.release_slots(flows.tables, flows.group_slots(3))
            flows.drop(flows.group_slots(3))
    if isinstance(balancer, AssigningBalancer):
        assert router.num_loaded_channels == balancer.num_loaded_channels
        router.check_invariants()


@pytest.mark.parametrize("salt_by_switch", [True, False])
def test_router_takes_the_salts_of_the_balancer(salt_by_switch: bool) -> None:
    balancer = EcmpBalancer(PathTable(FABRICS[1]), seed=3, salt_by_switch=salt_by_switch)
    router = Router(balancer.rules)
    for key in range(50):
        num_new, _ = router.route(key, [RankTransfer(0, 127, 1000)], 0)
        assert subflows_of(router, num_new) == list(balancer.route(0, 127, 1000, key << 16))


@settings(max_examples=150)
@given(
    st.sampled_from(FABRICS + FAILED_FABRICS),
    st.sampled_from([name for name in POLICIES if name != "spray"]),
    gpus,
    gpus,
    st.integers(1, 10**9),
)
def test_routes_are_simple_paths_from_server_to_server(
    topology: Topology, policy: str, src: int, dst: int, num_bytes: int
) -> None:
    """INV-13, on every kind of fabric and after failures; no byte is lost."""
    src, dst = src % topology.num_gpus, dst % topology.num_gpus
    try:
        balancer = make_load_balancer(policy, topology, queue_pairs=2)
    except UnsupportedError:
        return
    parts = balancer.route(src, dst, num_bytes, 7)
    if topology.same_server(src, dst):
        assert parts == ()
        return
    assert sum(part.num_bytes for part in parts) == num_bytes
    tail, head = topology.channel_tail, topology.channel_head
    for part in parts:
        nodes = [int(tail[part.channels[0]]), *(int(head[c]) for c in part.channels)]
        assert [int(tail[c]) for c in part.channels] == nodes[:-1]
        assert len(set(nodes)) == len(nodes)
        assert topology.same_server(nodes[0], src)
        assert topology.same_server(nodes[-1], dst)
        passed_hosts = [node for node in nodes[1:-1] if node < topology.num_gpus]
        assert topology.hosts_forward or not passed_hosts


@pytest.mark.parametrize("policy", ["ecmp", "assigned"])
def test_tables_grow_with_the_pairs_of_switches_in_use(policy: str) -> None:
    """Every pair of GPUs: each switch ends with a row for every way on."""
    topology = FABRICS[5]
    balancer = make_load_balancer(policy, topology)
    router = Router(balancer.rules)
    for src in range(topology.num_gpus):
        wanted = [RankTransfer(src, dst, 64) for dst in range(topology.num_gpus)]
        num_new, _ = router.route(src, wanted, 0)
        expected = [
            subflow
            for rank, part in enumerate(wanted)
            for subflow in balancer.route(part.src_gpu, part.dst_gpu, 64, src << 16 | rank)
        ]
        assert subflows_of(router, num_new) == expected
