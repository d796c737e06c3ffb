"""The event-driven PFC engine keeps its laws on fabrics that have no packet-level runs."""

import numpy as np
import pytest

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.engines.pfc import PfcEngine
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import make_load_balancer

GBIT = 10**9
MIB = 1 << 20

# kind, GPUs, radix, GPUs per server
FABRICS = [
    ("clos", 128, 16, 4),
    ("roft", 48, 8, 4),
    ("rail-only", 32, 8, 4),
    ("zcube", 64, 16, 8),
    ("hpn", 128, 32, 8),
    ("dragonfly", 36, 8, 2),
    ("jellyfish", 32, 8, 2),
    ("bcube", 16, 4, 4),
]

Flows = tuple[list[tuple[int, ...]], list[int]]


def build(kind: str, num_gpus: int, radix: int, servers: int) -> Topology:
    return build_topology(
        kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT, gpus_per_server=servers
    )


def hashed_flows(topology: Topology, seed: int) -> Flows:
    """Return paths and sizes of messages of 16 to 64 MiB between random GPUs."""
    rng = np.random.default_rng(seed)
    balancer = make_load_balancer("ecmp", topology, seed=seed)
    paths, sizes = [], []
    for key in range(3 * topology.num_gpus):
        src, dst = rng.integers(0, topology.num_gpus, 2).tolist()
        if topology.kind == "rail-only":  # other rails are reached inside the servers
            dst = (src + topology.gpus_per_server * int(rng.integers(1, 8))) % topology.num_gpus
        for part in balancer.route(src, dst, int(rng.integers(16, 64)) * MIB, key):
            paths.append(part.channels)
            sizes.append(part.num_bytes)
    return paths, sizes


@pytest.mark.parametrize(("kind", "num_gpus", "radix", "servers"), FABRICS)
def test_all_flows_end_and_every_channel_carries_their_bytes(
    kind: str, num_gpus: int, radix: int, servers: int
) -> None:
    topology = build(kind, num_gpus, radix, servers)
    paths, sizes = hashed_flows(topology, seed=1)
    engine = PfcEngine(topology.channel_capacity_bps)
    expected = np.zeros(topology.num_channels)
    for path, size_bytes in zip(paths, sizes, strict=True):
        expected[list(path)] += size_bytes
    for i in range(len(paths)):  # one every 20 us
        engine.advance(20_000 * i)
        engine.start_flows(20_000 * i, [paths[i]], [sizes[i]])
        engine.check_invariants()
    while (now_ns := engine.next_completion_ns()) is not None:
        engine.advance(now_ns)
        engine.check_invariants()
    assert engine.carried_bytes() == pytest.approx(expected, rel=1e-12)
    assert engine.paused_ns().sum() > 0
    assert engine.num_unconverged < engine.num_solves / 2


@pytest.mark.parametrize(("kind", "num_gpus", "radix", "servers"), FABRICS)
def test_flows_that_do_not_meet_run_as_under_max_min(
    kind: str, num_gpus: int, radix: int, servers: int
) -> None:
    topology = build(kind, num_gpus, radix, servers)
    paths, sizes = hashed_flows(topology, seed=2)
    used: set[int] = set()
    alone = []
    for path in paths:
        if used.isdisjoint(path):
            alone.append(path)
            used.update(path)
    pfc = PfcEngine(topology.channel_capacity_bps)
    fair = MaxMinEngine(topology.channel_capacity_bps)
    for engine in (pfc, fair):
        engine.start_flows(0, alone, sizes[: len(alone)])
    now_ns = fair.next_completion_ns()
    while now_ns is not None:
        assert pfc.next_completion_ns() == now_ns
        assert pfc.advance(now_ns) == fair.advance(now_ns)
        now_ns = fair.next_completion_ns()
    assert pfc.num_victims() == 0


def test_slower_uplinks_than_nics_are_shared_by_ingress_port() -> None:
    """Mixed speeds: four NICs of 400 Gbit/s behind an uplink of 100 Gbit/s."""
    capacity = np.array([400 * GBIT] * 4 + [100 * GBIT, 400 * GBIT])
    engine = PfcEngine(capacity)
    engine.start_flows(0, [[i, 4, 5] for i in range(4)], [MIB] * 4)
    engine.check_invariants()
    assert [engine.rate_bps(i) for i in range(4)] == pytest.approx([25 * GBIT] * 4, rel=2e-3)
