"""Load balancing against balls in bins, and against an independent static comparison."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import EcmpBalancer, LoadBalancer, make_load_balancer
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.permutation import assign_permutation

GBIT = 10**9
NIC_BPS = 400 * GBIT
MESSAGE_BYTES = 10**9


def most_on_one_uplink(connections_per_gpu: int, seeds: int) -> list[int]:
    """Return the most of 8 x ``connections_per_gpu`` connections on one of 8 uplinks, per seed."""
    paths = PathTable(
        build_topology("clos", 16, radix=16, nic_rate_bps=NIC_BPS, gpus_per_server=1, num_tiers=2)
    )
    most = []
    for seed in range(seeds):
        balancer = EcmpBalancer(paths, queue_pairs=connections_per_gpu, seed=seed)
        routes = [balancer.route(gpu, 15 - gpu, 1000, gpu) for gpu in range(8)]
        uplinks = Counter(part.channels[1] for parts in routes for part in parts)
        most.append(max(uplinks.values()))
    return most


def exact_mean_of_maximum(balls: int, bins: int) -> float:
    """Return E[max load]: the sum over m of P(max > m), from the truncated exponential series."""
    below = []
    for most in range(balls + 1):
        series = np.array([1.0])
        for _ in range(bins):
            series = np.convolve(series, [1 / math.factorial(i) for i in range(most + 1)])
        coefficient = series[balls] if len(series) > balls else 0.0
        below.append(coefficient * math.factorial(balls) / bins**balls)
    return float(sum(1 - probability for probability in below))


def test_eight_connections_on_eight_links_over_many_seeds() -> None:
    # Exact: P(no collision) = 8! / 8^8 = 0.0024, E[max] = 2.60; 6,000 seeds: 14.4 +- 3.8 without
    most = most_on_one_uplink(connections_per_gpu=1, seeds=6000)
    assert math.factorial(8) / 8**8 == pytest.approx(0.0024, abs=5e-5)
    assert most.count(1) == pytest.approx(0.0024 * 6000, abs=4 * 3.8)
    assert exact_mean_of_maximum(8, 8) == pytest.approx(2.60, abs=0.005)
    assert np.mean(most) == pytest.approx(2.60, abs=4 * np.std(most) / 6000**0.5)


def test_thirty_two_connections_on_eight_links_over_many_seeds() -> None:
    # The figure in use, 7.06, is a sample's; exact is 7.048.
    most = most_on_one_uplink(connections_per_gpu=4, seeds=2000)
    exact = exact_mean_of_maximum(32, 8)
    assert exact == pytest.approx(7.06, abs=0.02)
    assert np.mean(most) == pytest.approx(exact, abs=4 * np.std(most) / 2000**0.5)


Pairs = list[tuple[int, int]]


def node_permutation_same_rank(rng: np.random.Generator) -> Pairs:
    receivers = 64 + rng.permutation(64)
    return [(8 * s + r, 8 * int(receivers[s]) + r) for s in range(64) for r in range(8)]


def gpu_permutation(rng: np.random.Generator) -> Pairs:
    return list(enumerate((512 + rng.permutation(512)).tolist()))


def random_node_same_rank(rng: np.random.Generator) -> Pairs:
    receivers = 64 + rng.integers(0, 64, 64)
    return [(8 * s + r, 8 * int(receivers[s]) + r) for s in range(64) for r in range(8)]


def random_any_rank(rng: np.random.Generator) -> Pairs:
    return list(enumerate((512 + rng.integers(0, 512, 512)).tolist()))


def two_of_eight_ranks(rng: np.random.Generator) -> Pairs:
    receivers = 8 * (64 + rng.integers(0, 64, 128)) + rng.integers(0, 2, 128)
    senders = [8 * s + r for s in range(64) for r in range(2)]
    return list(zip(senders, receivers.tolist(), strict=True))


def slowdowns(balancer: LoadBalancer, pairs: Pairs) -> list[float]:
    """Return each message's time at static max-min rates against that over an idle 400G NIC."""
    routes = [balancer.route(s, d, MESSAGE_BYTES, key) for key, (s, d) in enumerate(pairs)]
    parts = [part for route in routes for part in route]
    rates = static_rates_bps(balancer, [part.channels for part in parts])
    times = iter(8 * part.num_bytes / rate for part, rate in zip(parts, rates, strict=True))
    alone = 8 * MESSAGE_BYTES / NIC_BPS
    return [max(next(times) for _ in route) / alone for route in routes]


def static_rates_bps(balancer: LoadBalancer, paths: list[tuple[int, ...]]) -> list[float]:
    """Return the rates when all flows have just started."""
    engine = MaxMinEngine(balancer.channel_capacity_bps)
    ids = engine.start_flows(0, paths, [MESSAGE_BYTES] * len(paths))
    rates = engine._flows.tables.flows["rate"] * 8e9  # bytes/ns
    slot_of = engine._slot_by_flow_id()
    return [float(rates[slot_of[flow_id]]) for flow_id in ids]


# Columns: fabric, policy, queue pairs. ZCube(32,2) has one cable per pair of switches, ZCube on
# 51.2T switches (128 GPUs each) 16. What the table calls "deterministic" there spreads the load of
# a pair evenly over its 16 cables: its fractional p99 under a permutation (1.59) needs that.
COLUMNS = {
    "roft ecmp 1": ("roft", None, "ecmp", 1),
    "roft ecmp 4": ("roft", None, "ecmp", 4),
    "roft spray": ("roft", None, "spray", 1),
    "zcube 32": ("zcube", 64, "ecmp", 1),
    "zcube 128 even": ("zcube", None, "spray", 1),
    "zcube 128 hashed": ("zcube", None, "ecmp", 1),
}
Cells = dict[str, tuple[float, float]]

# Source: an independent static max-min comparison, 1,024 GPUs, 512 send to 512, mean and p99 of 6
# seeds. Margins: standard errors of both samples, 0.05 of a mean; the p99 of few whole numbers
# moves by one.
TABLE: dict[Callable[[np.random.Generator], Pairs], tuple[float, Cells]] = {
    node_permutation_same_rank: (
        0.12,
        {
            "roft ecmp 1": (2.35, 5.00),
            "roft ecmp 4": (1.90, 2.75),
            "roft spray": (1.00, 1.00),
            "zcube 128 even": (1.00, 1.00),
        },
    ),
    gpu_permutation: (
        0.12,
        {
            "roft ecmp 1": (2.40, 5.00),
            "roft ecmp 4": (1.93, 2.75),
            "roft spray": (1.00, 1.00),
            "zcube 32": (2.39, 5.03),
            "zcube 128 even": (1.17, 1.59),
        },
    ),
    random_node_same_rank: (
        0.15,
        {
            "roft ecmp 1": (2.65, 6.00),
            "roft ecmp 4": (2.23, 6.00),
            "roft spray": (1.96, 6.00),
            "zcube 32": (2.45, 6.00),
            "zcube 128 even": (1.96, 6.00),
        },
    ),
    random_any_rank: (
        0.12,
        {
            "roft ecmp 1": (2.71, 5.00),
            "roft ecmp 4": (2.27, 5.00),
            "roft spray": (2.00, 5.00),
            "zcube 32": (2.76, 5.06),
            "zcube 128 even": (2.00, 5.00),
        },
    ),
    two_of_eight_ranks: (
        0.15,
        {
            "roft ecmp 1": (2.66, 6.00),
            "roft ecmp 4": (2.31, 5.00),
            "roft spray": (2.05, 5.00),
            "zcube 32": (2.59, 5.00),
            "zcube 128 even": (2.05, 5.00),
        },
    ),
}


@pytest.fixture(scope="module")
def fabrics() -> dict[tuple[str, int | None], Topology]:
    wanted = {(kind, radix) for kind, radix, _, _ in COLUMNS.values()}
    return {
        (kind, radix): build_topology(kind, 1024, nic_rate_bps=NIC_BPS, radix=radix)
        for kind, radix in wanted
    }


def column_slowdowns(
    fabrics: dict[tuple[str, int | None], Topology],
    column: str,
    pattern: Callable[[np.random.Generator], Pairs],
) -> list[float]:
    kind, radix, policy, queue_pairs = COLUMNS[column]
    found: list[float] = []
    for seed in range(6):
        balancer = make_load_balancer(
            policy, fabrics[kind, radix], queue_pairs=queue_pairs, seed=seed
        )
        found += slowdowns(balancer, pattern(np.random.default_rng(seed)))
    return found


@pytest.mark.parametrize("pattern", TABLE, ids=lambda pattern: pattern.__name__)
def test_static_comparison_is_reproduced(
    fabrics: dict[tuple[str, int | None], Topology],
    pattern: Callable[[np.random.Generator], Pairs],
) -> None:
    margin, cells = TABLE[pattern]
    for column, (mean, p99) in cells.items():
        found = column_slowdowns(fabrics, column, pattern)
        is_even = mean == 1
        assert np.mean(found) == pytest.approx(mean, abs=1e-9 if is_even else margin), column
        # Receivers drawn at random: the load of one, seen by a sender, is 1 + Bin(63, 1/64), and
        # its 99th percentile exactly 5. With 64 draws a seed, samples of 4 and 6 are both at hand.
        p99_margin = 1e-9 if is_even else 0.15 if mean < 1.5 else 2.0
        assert np.percentile(found, 99) == pytest.approx(p99, abs=p99_margin), column


def test_square_zcube_under_a_node_permutation_is_within_its_wide_spread(
    fabrics: dict[tuple[str, int | None], Topology],
) -> None:
    """8 same-rank messages share one fate, so a seed is one draw: 2.19 with a deviation of 0.23."""
    found = np.array(column_slowdowns(fabrics, "zcube 32", node_permutation_same_rank))
    per_seed = found.reshape(6, -1).mean(axis=1)
    standard_error = float(per_seed.std(ddof=1)) * (2 / 6) ** 0.5  # of the two samples
    assert per_seed.mean() == pytest.approx(2.03, abs=3 * standard_error)
    assert np.percentile(found, 99) == pytest.approx(3.25, abs=1)


def test_hashed_bundles_cannot_be_free_of_collisions(
    fabrics: dict[tuple[str, int | None], Topology],
) -> None:
    """The table's 1.00 (and 1.96, equal to no hashing) for hashed 16-cable bundles cannot hold.

    Under a node permutation every bundle in use carries 16 stripes of 200G over 16 cables of 200G,
    and there are 64 such bundles. 1.00 needs all stripes alone, of probability 16! / 16^16 = 1.1e-6
    per bundle. A stripe is alone with (15/16)^15 = 0.38, both of a message with 0.14; the others
    wait for at least one other stripe, so the mean is about 1.86 at the least. Measured: 2.42, as
    with any other hash over as many choices.
    """
    pairs = node_permutation_same_rank(np.random.default_rng(0))
    balancer = make_load_balancer("ecmp", fabrics["zcube", None])
    routes = [balancer.route(s, d, MESSAGE_BYTES, key) for key, (s, d) in enumerate(pairs)]
    table = PathTable(fabrics["zcube", None])
    loads = Counter(table.bundle_of[part.channels[1]] for route in routes for part in route)
    assert set(loads.values()) == {16}
    assert {len(table.bundle_channels[bundle]) for bundle in loads} == {16}
    assert len(loads) == 64
    assert math.factorial(16) / 16**16 < 1.2e-6
    found = column_slowdowns(fabrics, "zcube 128 hashed", node_permutation_same_rank)
    assert np.mean(found) > 1.86
    # The other hashed cells (2.14, 1.96, 2.60, 2.22) come from the same column. What hashing gives:
    expected = {gpu_permutation: 2.48, random_node_same_rank: 2.66, random_any_rank: 2.77}
    for pattern, mean in expected.items():
        assert np.mean(column_slowdowns(fabrics, "zcube 128 hashed", pattern)) == pytest.approx(
            mean, abs=0.12
        )


def test_destination_indexed_routes_carry_a_node_permutation_without_collision(
    fabrics: dict[tuple[str, int | None], Topology],
) -> None:
    pairs = node_permutation_same_rank(np.random.default_rng(1))
    assert set(slowdowns(make_load_balancer("dmodk", fabrics["roft", None]), pairs)) == {1.0}


@pytest.mark.parametrize("pattern", [node_permutation_same_rank, gpu_permutation])
def test_known_permutation_runs_at_full_rate_over_two_tiers(
    fabrics: dict[tuple[str, int | None], Topology],
    pattern: Callable[[np.random.Generator], Pairs],
) -> None:
    """Edge coloring: no slowdown, where hashing has 2.4 and least-loaded arrivals 1.0 to 1.3."""
    topology = fabrics["roft", None]
    assigned = assign_permutation(PathTable(topology), pattern(np.random.default_rng(2)))
    balancer = make_load_balancer("ecmp", topology)
    rates = static_rates_bps(balancer, [path for paths in assigned for path in paths])
    assert set(rates) == {float(NIC_BPS)}
