"""Print what one failed top-of-rack switch costs four fabrics of 4,096 GPUs.

    python bench/bench_tor_fault.py [--gpus 4096] [--policy assigned]

Published: "From ATOP to ZCube", SIGCOMM 2025, appendix G and figure 3b: training throughput of
GPT-3 lost by one ToR fault at 4k GPUs, flow level. The paper states neither the traffic nor how a
GPU without a NIC goes on. Assumed here:

- ring: GPU r of every server sends to GPU r of the next one, all at once (all-reduce over rails);
- mixed: GPU r of every server sends equal parts to GPU r of 8 others, drawn at random (a sample of
  all-to-all over rails);
- a GPU whose only port is lost uses the NIC of the next GPU in its server; one that has a port left
  uses that alone. Nothing else is balanced inside a server.

Per traffic: the time of the slowest message, which is what a collective waits for, and the mean
rate of all messages, each against the healthy fabric under the same policy. ``step``: throughput
lost by a training step that communicates for a tenth of its time, exposed, and waits for the
slowest; the tenth is an assumption, not fitted to a fabric.
"""

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin import solve_flows
from kvfabric.fabric.failures import parse_failures, without
from kvfabric.fabric.graph import SwitchRole, Topology
from kvfabric.fabric.routes.load_balancing import POLICIES, make_load_balancer

NIC_BPS = 400 * 10**9
MESSAGE_BYTES = 10**9
COMMUNICATION_SHARE = 0.1
# kind, tiers, NIC ports (a switch of 25.6T has 64 ports of 400G), published loss in percent
FABRICS = (
    ("roft", 3, 1, 46.9),
    ("rail-only", None, 1, 46.2),
    ("hpn", None, 2, 9.0),
    ("zcube", None, 2, 2.8),
)
Pairs = list[tuple[int, int]]


def ring(topology: Topology) -> Pairs:
    """Return one message per GPU, to its rank in the next server."""
    num, size = topology.num_gpus, topology.gpus_per_server
    return [(gpu, (gpu + size) % num) for gpu in range(num)]


def mixed(topology: Topology) -> Pairs:
    """Return eight messages per GPU, to its rank in servers drawn at random."""
    size = topology.gpus_per_server
    rng, servers = np.random.default_rng(0), topology.num_gpus // size
    drawn = [rng.permutation(servers) for _ in range(8 * size)]
    return [
        (size * src + number % size, size * int(dst) + number % size)
        for number, receivers in enumerate(drawn)
        for src, dst in enumerate(receivers)
        if src != dst
    ]


def message_times(topology: Topology, policy: str, pairs: Pairs) -> np.ndarray:
    """Return when each message ends, in seconds, when all start together."""
    balancer = make_load_balancer(policy, topology)
    routes = [balancer.route(s, d, MESSAGE_BYTES, key) for key, (s, d) in enumerate(pairs)]
    parts = [part for route in routes for part in route]
    hops = [len(part.channels) for part in parts]
    finish = solve_flows(
        balancer.channel_capacity_bps,
        np.concatenate([[0], np.cumsum(hops)]),
        np.array([channel for part in parts for channel in part.channels]),
        np.zeros(len(parts)),
        np.array([part.num_bytes for part in parts]),
    )
    first_part = np.cumsum([0] + [len(route) for route in routes[:-1]])
    return np.maximum.reduceat(finish, first_part)


def failed_tors(topology: Topology) -> Iterator[str]:
    """Yield one switch with NIC ports of each role."""
    roles = {topology.switches[s].role for s in np.unique(topology.access_switches)}
    for role in SwitchRole:
        if role in roles:
            yield f"{role.value} 0"


def losses(healthy: np.ndarray, failed: np.ndarray) -> tuple[float, float, float]:
    """Return what slowest message, mean rate and training step lose, in percent."""
    slower = failed.max() / healthy.max()
    step = 1 + COMMUNICATION_SHARE * (slower - 1)
    shares = 1 / slower, (1 / failed).mean() / (1 / healthy).mean(), 1 / step
    slowest, mean, training = (100 * (1 - share) for share in shares)
    return slowest, mean, training


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per fabric, traffic and role of the failed switch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=4096)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="assigned")
    options = parser.parse_args(arguments)
    radix = round(options.gpus**0.5)
    print("loss in percent of the healthy fabric's throughput")
    print(f"{'fabric':46} {'failed':18} {'traffic':8} slowest   mean   step  published")
    for kind, tiers, ports, published in FABRICS:
        topology = build_topology(
            kind, options.gpus, radix=radix * ports, nic_rate_bps=NIC_BPS, num_tiers=tiers
        )
        for traffic in (ring, mixed):
            pairs = traffic(topology)
            healthy = message_times(topology, options.policy, pairs)
            for name in failed_tors(topology):
                left = without(topology, parse_failures(topology, [f"switch:{name}"]))
                found = losses(healthy, message_times(left, options.policy, pairs))
                numbers = " ".join(f"{loss:6.1f}" for loss in found)
                label = topology.name[:46]
                print(f"{label:46} {name:18} {traffic.__name__:8}  {numbers}     {published:4.1f}")


if __name__ == "__main__":
    main()
