"""``ecmp`` and ``flowlet``: every switch picks by a hash, per connection or per flowlet."""

from kvfabric.errors import ConfigError
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.balancer import (
    StatelessBalancer,
    Stripe,
    SubFlow,
    stripe_path,
    stripes,
)
from kvfabric.fabric.routes.routing_tables import PathRules, Policy

_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """Return 64 bits that depend on all bits of ``value``.

    Source: finalizer of SplitMix64, Steele, Lea and Flood, OOPSLA 2014.
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class EcmpBalancer(StatelessBalancer):
    """Per-connection ECMP, hop by hop, as switches do it.

    Each NIC port of a message opens ``queue_pairs`` connections. Every switch hashes the 5-tuple
    (source port, destination port, UDP source port; protocol and UDP destination port are equal for
    all RoCEv2) among all its equal-cost ports, parallel cables included. The hash is ``mix64``
    chained over the fields, the seed and, unless ``salt_by_switch`` is off, the switch: without
    that salt tiers repeat each other's choice and part of the paths is never used.
    """

    _least_bytes = 1

    def __init__(
        self, paths: PathTable, *, queue_pairs: int = 1, seed: int = 0, salt_by_switch: bool = True
    ) -> None:
        """Prepare one hash salt per switch."""
        if queue_pairs < 1:
            raise ConfigError(
                f"{queue_pairs} queue pairs", where="fabric.queue_pairs", hint="Write 1 or more"
            )
        super().__init__(paths)
        self._queue_pairs = queue_pairs
        num_switches = paths.topology.num_switches
        self._seed = mix64(seed)
        self._salts = [mix64(s + 1) if salt_by_switch else 0 for s in range(num_switches)]

    @property
    def name(self) -> str:
        """Return ``ecmp(n qp)``."""
        return f"ecmp({self._queue_pairs} qp)"

    def route(
        self, src_gpu: int, dst_gpu: int, num_bytes: int, flow_key: int
    ) -> tuple[SubFlow, ...]:
        """Return one sub-flow per port pair and queue pair."""
        parts = stripes(
            self._paths,
            src_gpu,
            dst_gpu,
            num_bytes,
            most_per_port=self._queue_pairs,
            least_bytes=self._least_bytes,
        )
        first = flow_key * self._queue_pairs
        return tuple(
            SubFlow(self._path(part, first + part.number), part.num_bytes) for part in parts
        )

    def _path(self, stripe: Stripe, udp_port: int) -> tuple[int, ...]:
        paths = self._paths
        key = mix64(self._seed ^ paths.uplink(stripe.src_gpu, stripe.src_port))
        key = mix64(key ^ paths.downlink(stripe.dst_gpu, stripe.dst_port))
        key = mix64(key ^ (udp_port & _MASK))
        switch = source = paths.access_switch(stripe.src_gpu, stripe.src_port)
        target = paths.access_switch(stripe.dst_gpu, stripe.dst_port)
        hops = []
        while switch != target:
            choices = paths.channels_toward(switch, target)
            if switch == source:
                choices = paths.without_gpu(choices, stripe.src_gpu)
            # the high bits scaled to the number of choices: no bias at any count
            hop = choices[(mix64(key ^ self._salts[switch]) * len(choices)) >> 64]
            hops.append(hop)
            switch = paths.next_switch(hop)
        return stripe_path(paths, stripe, hops)

    @property
    def rules(self) -> PathRules:
        """Return fabric, queue pairs, seed and salts."""
        return PathRules(
            policy=Policy.ECMP,
            paths=self._paths,
            queue_pairs=self._queue_pairs,
            least_part_bytes=self._least_bytes,
            seed=self._seed,
            salts=self._salts,
        )


class FlowletBalancer(EcmpBalancer):
    """Flowlet switching: a connection is hashed anew after every ``flowlet_bytes``.

    The message of a NIC port is one connection, cut into flowlets of at least ``flowlet_bytes``, 16
    at most; each is hashed on its own, the number of the flowlet among the fields.

    Does not model the gaps that make a flowlet (a sender at line rate may leave none, and is then
    never hashed again), nor the order of flowlets: those of a message share the network side by
    side, as queue pairs do, where real ones follow each other. Nor does it choose by load.
    """

    MOST_FLOWLETS = 16

    def __init__(self, paths: PathTable, *, flowlet_bytes: int, seed: int = 0) -> None:
        """Prepare one hash salt per switch."""
        if flowlet_bytes < 1:
            raise ConfigError(
                f"flowlets of {flowlet_bytes} bytes",
                where="fabric.flowlet_bytes",
                hint="Write 1 or more",
            )
        super().__init__(paths, queue_pairs=self.MOST_FLOWLETS, seed=seed)
        self._least_bytes = flowlet_bytes

    @property
    def name(self) -> str:
        """Return ``flowlet(n bytes)``."""
        return f"flowlet({self._least_bytes} bytes)"
