"""The five fabrics of an all-to-all of 64 GPUs, as the ZCube paper compares them.

"From ATOP to ZCube", SIGCOMM 2025, DOI 10.1145/3718958.3750503, Tables 4 and 5: 64 MB all-to-all,
flow-level max-min. The paper prints neither the sizes of the fabrics nor what an all-to-all of
64 MB is; ``ASSUMPTIONS`` says what is taken here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.graph import FloatArray, Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.routes.load_balancing import LoadBalancer, SubFlow, make_load_balancer
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.hashing import mix64
from kvfabric.fabric.routes.routing_tables import PathRules
from kvfabric.fabric.topologies.bcube import build_bcube
from kvfabric.fabric.topologies.dragonfly import build_dragonfly
from kvfabric.fabric.traffic.collective_run import run_collective
from kvfabric.fabric.traffic.collectives import all_to_all

GBIT = 10**9
MIB = 1 << 20
NUM_GPUS = 64
PORT_BPS = 100 * GBIT

ASSUMPTIONS = """\
64 MB is 64 MiB per GPU: 1 MiB for each of 64 ranks; all messages start at once
every NIC port and cable has 100 Gbit/s: one port in RoFT and Dragonfly, two in the others
(the same times as 200 Gbit/s per port and 2 MiB per message)
messages among 16 GPUs (two servers of 8) stay off the fabric: 48 of 64 cross it
one connection per message and port, hashed over equal shortest paths; mean over 3 seeds
Dragonfly: the one global cable between two groups, not every shortest path
HPN: each message through one of the two ports, hashed; the others use both ports evenly"""


class OnePort:
    """Sends every message whole through one of its NIC ports, picked by a hash (bonded ports)."""

    def __init__(self, inner: LoadBalancer) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return f"{self._inner.name}, one port per message"

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return bit/s of every channel."""
        return self._inner.channel_capacity_bps

    @property
    def rules(self) -> PathRules:
        """Return which paths it takes."""
        return self._inner.rules

    def route(self, src: int, dst: int, num_bytes: int, flow_key: int) -> tuple[SubFlow, ...]:
        """Return the whole message on the path of one port."""
        parts = self._inner.route(src, dst, num_bytes, flow_key)
        if not parts:
            return ()
        part = parts[mix64(flow_key ^ 0x5EED) % len(parts)]
        return (SubFlow(part.channels, num_bytes),)

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Forget flows that have ended."""
        self._inner.release(subflows)

    def channel_name(self, channel: int) -> str:
        """Return the name of a channel."""
        return self._inner.channel_name(channel)


class MinimalDragonfly(OnePort):
    """Takes the one global cable between two groups, as Kim et al. (ISCA 2008) define minimal.

    Shortest paths are others as well: over a third group, two global cables reach some routers
    where local, global, local would be three.
    """

    def __init__(self, inner: LoadBalancer, topology: Topology, routers: int) -> None:
        super().__init__(inner)
        self._paths = PathTable(topology)
        self._routers = routers
        self._crossing: dict[tuple[int, int], tuple[int, int]] = {}
        for switch in range(topology.num_switches):
            for other in range(topology.num_switches):
                groups = switch // routers, other // routers
                if groups[0] != groups[1] and self._paths.distances[switch, other] == 1:
                    self._crossing[groups] = switch, other

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return "minimal"

    def route(
        self,
        src: int,
        dst: int,
        num_bytes: int,
        flow_key: int,  # noqa: ARG002 - the interface of all policies
    ) -> tuple[SubFlow, ...]:
        """Return the one minimal path."""
        paths = self._paths
        if paths.topology.same_server(src, dst):
            return ()
        source, target = paths.access_switch(src, 0), paths.access_switch(dst, 0)
        groups = source // self._routers, target // self._routers
        stops = [source, *(self._crossing[groups] if groups[0] != groups[1] else ()), target]
        channels = [paths.uplink(src, 0)]
        for before, after in pairwise(stops):
            if before != after:
                channels.append(paths.channels_toward(before, after)[0])
        return (SubFlow((*channels, paths.downlink(dst, 0)), num_bytes),)


@dataclass(frozen=True, slots=True)
class Case:
    """One fabric, how it is routed, and the published flow-level time in ms."""

    name: str
    published_ms: float
    build: Callable[[int], Topology]
    balance: Callable[[Topology, int], LoadBalancer]
    note: str


def _hashed(topology: Topology, seed: int) -> LoadBalancer:
    return make_load_balancer("ecmp", topology, seed=seed)


def _by_kind(kind: str, ports: int, radix: int) -> Callable[[int], Topology]:
    def build(gpus_per_server: int) -> Topology:
        return build_topology(
            kind,
            NUM_GPUS,
            radix=radix,
            nic_rate_bps=ports * PORT_BPS,
            gpus_per_server=gpus_per_server,
        )

    return build


def _request(ports: int, radix: int, gpus_per_server: int, shape: dict[str, int]) -> FabricRequest:
    return FabricRequest(
        num_gpus=NUM_GPUS,
        radix=radix,
        port_rate_bps=PORT_BPS,
        nic_rate_bps=ports * PORT_BPS,
        gpus_per_server=gpus_per_server,
        shape=shape,
    )


CASES = (
    Case("RoFT", 4.841, _by_kind("roft", 1, 16), _hashed, "ECMP"),
    Case(
        "Dragonfly",
        5.473,
        lambda servers: build_dragonfly(_request(1, 7, servers, {"a": 4, "p": 2, "h": 2})),
        lambda topology, seed: MinimalDragonfly(_hashed(topology, seed), topology, routers=4),
        "minimal: the one global cable between two groups",
    ),
    Case(
        "BCube(8,2)",
        4.057,
        lambda servers: build_bcube(_request(2, 8, servers, {"k": 2})),
        _hashed,
        "ECMP, both ports of the NIC",
    ),
    Case(
        "HPN",
        2.742,
        _by_kind("hpn", 2, 16),
        lambda topology, seed: OnePort(_hashed(topology, seed)),
        "ECMP, each message through one of two bonded ports",
    ),
    Case("ZCube(8,2)", 2.011, _by_kind("zcube", 2, 16), _hashed, "both paths of a pair evenly"),
)


@cache
def all_to_all_ms(case: Case, *, domain: int, pair_bytes: int = MIB, num_seeds: int = 3) -> float:
    """Return the time of the all-to-all, mean over seeds of the hash.

    Args:
        case: the fabric, wired for servers of 8 GPUs.
        domain: consecutive GPUs whose messages to each other stay off the fabric.
        pair_bytes: of each message.
        num_seeds: of the hash.
    """
    topology = replace(case.build(8), gpus_per_server=domain)
    flows = all_to_all(range(NUM_GPUS), pair_bytes)
    total_ns = 0
    for seed in range(num_seeds):
        balancer = case.balance(topology, seed)
        engine = MaxMinEngine(balancer.channel_capacity_bps)
        total_ns += run_collective(flows, balancer, engine, first_key=seed << 20).duration_ns
    return total_ns / num_seeds / 1e6
