"""Which channels a message takes: the policies by name. Results always name the policy.

The balancers of ``policies`` are the readable forms; ``routing`` finds the same paths compiled, by
the ``rules`` of each.

Every policy stripes a message evenly over all ports of the NIC, as multi-rail UCX and NIXL do. GPUs
of one server use no fabric channel: their route is empty, and the caller moves those bytes inside
the server.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.assigning import AssigningBalancer
from kvfabric.fabric.routes.policies.balancer import LoadBalancer, SubFlow, split_bytes
from kvfabric.fabric.routes.policies.hashing import EcmpBalancer, FlowletBalancer
from kvfabric.fabric.routes.policies.indexed import DmodkBalancer, PathIndexBalancer
from kvfabric.fabric.routes.policies.spraying import SprayBalancer

__all__ = [
    "POLICIES",
    "AssigningBalancer",
    "EcmpBalancer",
    "LoadBalancer",
    "SubFlow",
    "make_load_balancer",
    "split_bytes",
]

FLOWLET_BYTES = 1 << 20

# name: from paths, queue pairs, seed and flowlet size
_Maker = Callable[[PathTable, int, int, int], LoadBalancer]

POLICIES: Mapping[str, _Maker] = MappingProxyType(
    {
        "ecmp": lambda paths, qp, seed, _: EcmpBalancer(paths, queue_pairs=qp, seed=seed),
        "spray": lambda paths, *_: SprayBalancer(paths),
        "assigned": lambda paths, *_: AssigningBalancer(paths),
        "flowlet": lambda paths, _, seed, size: FlowletBalancer(
            paths, flowlet_bytes=size, seed=seed
        ),
        "dmodk": lambda paths, *_: DmodkBalancer(paths),
        "path-source": lambda paths, *_: PathIndexBalancer(paths, by_source=True),
        "path-destination": lambda paths, *_: PathIndexBalancer(paths, by_source=False),
    }
)


def make_load_balancer(
    policy: str,
    topology: Topology,
    *,
    queue_pairs: int = 1,
    seed: int = 0,
    flowlet_bytes: int = FLOWLET_BYTES,
) -> LoadBalancer:
    """Return the load balancer of a policy.

    Args:
        policy: its name, one of ``POLICIES``.
        topology: the fabric it routes over.
        queue_pairs: connections per NIC port and message (``ecmp``).
        seed: of the switches' hash functions (``ecmp``, ``flowlet``).
        flowlet_bytes: a connection is hashed anew after so many (``flowlet``).

    Raises:
        ConfigError: no such policy, or not on this fabric.
    """
    if policy not in POLICIES:
        raise ConfigError(
            f"unknown load balancing {policy!r}",
            where="fabric.load_balancing",
            hint=f"Write one of {', '.join(POLICIES)}",
        )
    return POLICIES[policy](PathTable(topology), queue_pairs, seed, flowlet_bytes)
