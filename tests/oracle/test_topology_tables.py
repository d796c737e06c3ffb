"""Published counts, path lengths, costs and collision figures of fabrics."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import FloatArray, Topology
from kvfabric.fabric.measured.bisection import bisection_bps
from kvfabric.fabric.measured.measures import path_lengths, switches_by_role, topology_report
from kvfabric.fabric.routes.load_balancing import EcmpBalancer, make_load_balancer
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.validation.topology_tables import (
    DEEPSEEK_TABLE_3,
    HPN_SHAPE,
    HPN_SIZES,
    MOST_SWITCHES,
    SUPERPOD_B200,
    SUPERPOD_H100,
    TABLE_3,
    TABLE_6,
    TABLE_7,
)

GBIT = 10**9


def build(kind: str, num_gpus: int, radix: int | None, tiers: int | None = None) -> Topology:
    return build_topology(kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT, num_tiers=tiers)


@pytest.mark.parametrize(("kind", "num_gpus", "radix", "tiers", "counts", "cost"), TABLE_7)
def test_counts_and_cost_equal_published_table(
    kind: str,
    num_gpus: int,
    radix: int,
    tiers: int | None,
    counts: tuple[int, ...],
    cost: float,
) -> None:
    topology = build(kind, num_gpus, radix, tiers)
    report = topology_report(topology)
    keys = ("switches", "links_copper", "links_fibre", "optics", "nic_ports_per_gpu")
    assert tuple(report[key] for key in keys) == counts
    range_usd = bill_of_materials(topology, PRICE_BOOK).cost()
    assert range_usd.low_usd < cost * 1e6 < range_usd.high_usd


@pytest.mark.parametrize(("kind", "radix", "tiers", "links_by_rate"), TABLE_6)
def test_cables_by_rate_equal_published_table(
    kind: str, radix: int, tiers: int | None, links_by_rate: dict[int, int]
) -> None:
    rates = (build(kind, 16384, radix, tiers).links.rate_bps // GBIT).tolist()
    assert Counter(rates) == links_by_rate


@pytest.mark.parametrize(("num_gpus", "radix", "switches"), [(1024, 32, 160), (4096, 64, 320)])
def test_clos_has_the_switches_of_the_rail_optimized_fabric(
    num_gpus: int, radix: int, switches: int
) -> None:
    assert build("clos", num_gpus, radix, 3).num_switches == switches


def test_two_tiers_of_largest_switches_against_one_layer() -> None:
    # Source: counts 3N/R and 2N/R derived from z.ai/blog/zcube, 2026-05-20; R = 128 x 400G
    assert switches_by_role(build("roft", 1024, None)) == {"leaf": 16, "spine": 8}
    assert build("zcube", 1024, None).num_switches == 16


@pytest.mark.parametrize(("kind", "num_gpus", "radix", "tiers", "average", "scale_up"), TABLE_3)
def test_average_path_lengths_equal_published_table(
    kind: str, num_gpus: int, radix: int, tiers: int | None, average: float | None, scale_up: float
) -> None:
    lengths = path_lengths(build(kind, num_gpus, radix, tiers))
    assert lengths.scale_up_average_links == pytest.approx(scale_up, abs=6e-6)
    if average is None:
        assert lengths.average_links is None
    else:
        assert lengths.average_links == pytest.approx(average, abs=6e-6)


def test_hpn_of_1024_gpus_has_the_published_path_length_but_not_the_one_with_scale_up() -> None:
    """Table 3 says 3.93939 and 3.76918; the second does not follow from the first.

    32 GPUs share each leaf, which is what 3.93939 = 4 - 2 * 31 / 1023 says. Then 7 GPUs are 1 link
    away, 31 are 2, 31 * 7 are 3 (through a neighbor in a server) and 768 are 4: 3.70674. The rows
    of 4,096 and 16,384 GPUs follow this count.
    """
    lengths = path_lengths(build("hpn", 1024, 64))
    assert lengths.average_links == pytest.approx(3.93939, abs=6e-6)
    assert lengths.scale_up_average_links == (7 * 1 + 31 * 2 + 31 * 7 * 3 + 768 * 4) / 1023


def test_path_lengths_of_hpn_with_4096_gpus_are_those_of_leaves_with_128_gpus() -> None:
    """Table 3 says 3.93797 and 3.71575, and Table 7 says 128 ports of 200G: 64 GPUs on a leaf.

    The path lengths belong to leaves with 128 GPUs, that is 256 ports; with 64 they would be
    3.96923 and 3.85641. The counts of Table 7 are those of 128 ports.
    """
    wide, narrow = (path_lengths(build("hpn", 4096, radix)) for radix in (256, 128))
    assert wide.average_links == pytest.approx(3.93797, abs=6e-6)
    assert wide.scale_up_average_links == pytest.approx(3.71575, abs=6e-6)
    assert narrow.average_links == pytest.approx(3.96923, abs=6e-6)
    assert narrow.scale_up_average_links == pytest.approx(3.85641, abs=6e-6)


@pytest.mark.parametrize(("num_gpus", "radix"), [(1024, 32), (4096, 64), (16384, 128)])
def test_average_path_length_of_three_tiers_equals_the_closed_form(
    num_gpus: int, radix: int
) -> None:
    half = radix // 2  # GPUs of a leaf; a pod has half^2
    links = 2 * (half - 1) + 4 * (half**2 - half) + 6 * (num_gpus - half**2)
    found = path_lengths(build("roft", num_gpus, radix, 3)).average_links
    assert found == pytest.approx(links / (num_gpus - 1), rel=1e-12)


@pytest.mark.parametrize(("num_gpus", "radix"), [(1024, 64), (4096, 128), (16384, 256)])
def test_average_path_length_of_hpn_equals_the_closed_form(num_gpus: int, radix: int) -> None:
    found = path_lengths(build("hpn", num_gpus, radix)).average_links
    assert found == pytest.approx(4 - 2 * (radix / 2 - 1) / (num_gpus - 1), rel=1e-12)


@pytest.mark.parametrize(
    ("num_gpus", "radix", "per_leaf"), [(1024, 32, 16), (4096, 64, 32), (16384, 128, 64)]
)
def test_scale_up_path_length_of_rail_only_equals_the_closed_form(
    num_gpus: int, radix: int, per_leaf: int
) -> None:
    # 7 GPUs of the server at 1 link; per other server of the leaf 2 on the same rail and 3 through
    # a neighbor, of other leaves 4 and 5
    near, far = per_leaf - 1, num_gpus // 8 - per_leaf
    links = 7 + near * (2 + 7 * 3) + far * (4 + 7 * 5)
    found = path_lengths(build("rail-only", num_gpus, radix)).scale_up_average_links
    assert found == pytest.approx(links / (num_gpus - 1), rel=1e-12)


@pytest.mark.parametrize(("kind", "num_gpus", "radix", "tiers", "hops"), MOST_SWITCHES)
def test_most_switches_on_a_path_equal_published_diameter(
    kind: str, num_gpus: int, radix: int, tiers: int | None, hops: int
) -> None:
    lengths = path_lengths(build(kind, num_gpus, radix, tiers))
    assert lengths.switch_hops_max == hops
    assert lengths.diameter_links == hops + 1


@pytest.mark.parametrize(("num_gpus", "leaf", "spine", "leaf_spine"), SUPERPOD_H100)
def test_superpod_h100_counts_equal_published_table(
    num_gpus: int, leaf: int, spine: int, leaf_spine: int
) -> None:
    topology = build("roft", num_gpus, 64)
    assert switches_by_role(topology) == {"leaf": leaf, "spine": spine}
    assert topology.num_links - num_gpus == leaf_spine


@pytest.mark.parametrize(("num_gpus", "leaf", "spine", "core"), SUPERPOD_B200)
def test_superpod_b200_counts_equal_published_table(
    num_gpus: int, leaf: int, spine: int, core: int
) -> None:
    topology = build("roft", num_gpus, 64)
    found = Counter(switches_by_role(topology))
    assert (found["leaf"], found["spine"], found["core"]) == (leaf, spine, core)
    tiers_of_cables = 2 if core else 1
    assert topology.num_links == num_gpus * (1 + tiers_of_cables)


@pytest.mark.parametrize(
    ("kind", "num_gpus", "tiers", "switches", "links_between_switches"), DEEPSEEK_TABLE_3
)
def test_deepseek_counts_equal_published_table(
    kind: str, num_gpus: int, tiers: int, switches: int, links_between_switches: int
) -> None:
    topology = build(kind, num_gpus, 64, tiers)
    assert topology.num_switches == switches
    assert topology.num_links - num_gpus == links_between_switches


@pytest.mark.parametrize(("num_gpus", "leaves", "aggregations"), HPN_SIZES)
def test_hpn_counts_equal_published_sizes(num_gpus: int, leaves: int, aggregations: int) -> None:
    topology = build_topology("hpn", num_gpus, nic_rate_bps=400 * GBIT, shape=HPN_SHAPE)
    assert switches_by_role(topology) == {"leaf": leaves, "aggregation": aggregations}
    used = topology.ports_used()[:leaves]
    assert set(used.tolist()) == {128 + 2 * 60}
    assert {switch.radix for switch in topology.switches} == {128 + 8 + 2 * 60}


def test_hpn_pod_has_the_published_tapers() -> None:
    # 128 x 200G down against 60 x 400G up per leaf, 120 down against 8 up per aggregation switch
    two_pods = build_topology("hpn", 30_720, nic_rate_bps=400 * GBIT, shape=HPN_SHAPE)
    assert (two_pods.num_tiers, switches_by_role(two_pods)["aggregation"]) == (3, 240)
    assert bisection_bps(two_pods) == 240 // 2 * 8 * 400 * GBIT
    assert switches_by_role(two_pods)["leaf"] == 480


def test_hpn_holds_the_published_most_gpus_in_sixteen_pods() -> None:
    topology = build_topology("hpn", 245_760, nic_rate_bps=400 * GBIT, shape=HPN_SHAPE)
    assert switches_by_role(topology) == {
        "leaf": 16 * 240,
        "aggregation": 16 * 120,
        "core": 16 * 120 * 8 // 128,
    }


def test_four_rail_guide_has_four_leaves_and_two_spines() -> None:
    # Source: Asterfusion implementation guide: 64 servers x 4 GPUs, CX864E-N as 128 x 400G
    topology = build_topology("roft", 256, nic_rate_bps=400 * GBIT, gpus_per_server=4)
    assert switches_by_role(topology) == {"leaf": 4, "spine": 2}


def test_four_rail_guide_without_spines_has_a_switch_per_rail() -> None:
    # Source: Asterfusion guide, 128 GPUs: 32 servers x 4 GPUs on 4 x CX732Q-N (32 x 400G)
    topology = build_topology(
        "rail-only", 128, radix=32, nic_rate_bps=400 * GBIT, gpus_per_server=4
    )
    assert switches_by_role(topology) == {"leaf": 4}


def test_multi_plane_with_eight_ports_per_nic_holds_the_published_gpus_in_two_tiers() -> None:
    # Source: arXiv 2605.04333 (MRC): per plane 512 leaves x 256 NIC ports at 100G = 131,072 GPUs,
    # 8 planes; a switch of 51.2 Tbit/s has 512 ports
    with pytest.raises(ConfigError, match="largest that fits is 131072 GPUs"):
        build_topology(
            "multi-plane",
            131_080,
            nic_rate_bps=800 * GBIT,
            num_tiers=2,
            shape={"planes": 8, "ports": 8},
        )


def loads_of_trials(num_keys: int, trials: int) -> list[int]:
    """Return the most connections on one of 8 uplinks, per trial of 8 x num_keys connections."""
    topology = build_topology(
        "clos", 16, radix=16, nic_rate_bps=GBIT, gpus_per_server=1, num_tiers=2
    )
    balancer = EcmpBalancer(PathTable(topology), seed=7)
    worst = []
    for trial in range(trials):
        keys = range(trial * num_keys, (trial + 1) * num_keys)
        routes = [balancer.route(gpu, 15 - gpu, 1, key) for gpu in range(8) for key in keys]
        uplinks = Counter(parts[0].channels[1] for parts in routes)
        worst.append(max(uplinks.values()))
    return worst


def test_eight_hashed_connections_on_eight_links_collide_as_balls_in_bins() -> None:
    # Exact: P(no collision) = 8! / 8^8 = 0.0024, E[max] = 2.60. 12,000 trials: 28.8 +- 5.4 without
    # a collision; standard error of the mean of the maximum 0.006.
    worst = loads_of_trials(num_keys=1, trials=12_000)
    assert worst.count(1) == pytest.approx(0.0024 * 12_000, abs=4 * 5.4)
    assert np.mean(worst) == pytest.approx(2.60, abs=0.025)


def test_thirty_two_hashed_connections_on_eight_links_have_the_expected_maximum() -> None:
    # Published as 7.06; exact: E[max] = 7.048 (ideal 4); standard error over 3,000 trials 0.02
    assert np.mean(loads_of_trials(num_keys=4, trials=3_000)) == pytest.approx(7.06, abs=0.08)


def max_min_rates(capacity_bps: FloatArray, paths: Sequence[Sequence[int]]) -> FloatArray:
    """Return max-min fair rates by progressive filling, channel after channel."""
    left = {c: float(capacity_bps[c]) for path in paths for c in path}
    flows_on: dict[int, set[int]] = {c: set() for c in left}
    for flow, path in enumerate(paths):
        for channel in path:
            flows_on[channel].add(flow)
    rates = np.zeros(len(paths))
    while flows_on:
        tightest = min(flows_on, key=lambda c: left[c] / len(flows_on[c]))
        share = left[tightest] / len(flows_on[tightest])
        for flow in list(flows_on[tightest]):
            rates[flow] = share
            for channel in paths[flow]:
                left[channel] -= share
                flows_on[channel].discard(flow)
        flows_on = {c: flows for c, flows in flows_on.items() if flows}
    return rates


def node_permutation(seed: int) -> list[tuple[int, int]]:
    """Return (source, destination) GPUs: servers 0 to 63 each send to one of 64 to 127, by rank."""
    receivers = 64 + np.random.default_rng(seed).permutation(64)
    return [(8 * s + r, 8 * int(d) + r) for s, d in enumerate(receivers) for r in range(8)]


def mean_slowdown(topology: Topology, policy: str, *, queue_pairs: int, seeds: int) -> float:
    """Return the mean slowdown of a message against an idle 400G NIC over all seeds."""
    slowdowns = []
    for seed in range(seeds):
        balancer = make_load_balancer(policy, topology, queue_pairs=queue_pairs, seed=seed)
        pairs = node_permutation(seed)
        parts = [balancer.route(s, d, 10**9, key) for key, (s, d) in enumerate(pairs)]
        flows = [(owner, part) for owner, own in enumerate(parts) for part in own]
        rates = max_min_rates(balancer.channel_capacity_bps, [p.channels for _, p in flows])
        last = np.zeros(len(parts))
        for (owner, part), rate in zip(flows, rates, strict=True):
            last[owner] = max(last[owner], 8 * part.num_bytes / rate)
        slowdowns.append(float(last.mean()) / (8e9 / 400e9))
    return float(np.mean(slowdowns))


@pytest.mark.parametrize(
    ("kind", "policy", "queue_pairs", "expected", "margin"),
    [
        # Static max-min comparison of 1,024 GPUs on 51.2T switches, 512 send to 512, 6 seeds;
        # figures of an independent calculation. Its sampling error is about 0.05 per row.
        ("roft", "ecmp", 1, 2.35, 0.12),
        ("roft", "ecmp", 4, 1.90, 0.12),
        ("roft", "spray", 1, 1.00, 1e-9),
        ("roft", "assigned", 1, 1.00, 1e-9),
        ("zcube", "assigned", 1, 1.00, 1e-9),
        ("zcube", "spray", 1, 1.00, 1e-9),
    ],
)
def test_server_permutation_slows_down_as_expected(
    kind: str, policy: str, queue_pairs: int, expected: float, margin: float
) -> None:
    found = mean_slowdown(build(kind, 1024, None), policy, queue_pairs=queue_pairs, seeds=3)
    assert found == pytest.approx(expected, abs=margin)
