"""Which channels a message takes: hashed, sprayed, or assigned. Results always name the policy.

These are the readable forms; ``routing`` finds the same paths compiled, by the ``rules`` of each.

Every policy stripes a message evenly over all ports of the NIC, as multi-rail UCX and NIXL do. GPUs
of one server use no fabric channel: their route is empty, and the caller moves those bytes inside
the server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import FloatArray, Topology
from kvfabric.fabric.paths import PathTable
from kvfabric.fabric.routing_tables import PathRules, Policy
from kvfabric.fabric.spray_pools import SprayPools

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SubFlow:
    """A part of a message that takes one path: channels from NIC port to NIC port, in order."""

    channels: tuple[int, ...]
    num_bytes: int


class LoadBalancer(Protocol):
    """Turns messages into sub-flows; only ``assigned`` remembers anything between calls."""

    @property
    def name(self) -> str:
        """Return the policy with its parameters, such as ``ecmp(4 qp)``."""
        ...

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of every channel id that a route may contain."""
        ...

    def route(
        self, src_gpu: int, dst_gpu: int, num_bytes: int, flow_key: int
    ) -> tuple[SubFlow, ...]:
        """Return the sub-flows of a message; their bytes add up to ``num_bytes``.

        Equal arguments with an equal ``flow_key`` are the same connections, so ``ecmp`` and
        ``spray`` send them the same way. Empty within a server and for a message of no bytes.
        """
        ...

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Take back what ``route`` returned, once it has been carried or dropped."""
        ...

    def channel_name(self, channel: int) -> str:
        """Return the name of a channel for reports."""
        ...

    @property
    def rules(self) -> PathRules:
        """Return what decides the paths, for the compiled form of the policy."""
        ...


def make_load_balancer(
    policy: str, topology: Topology, *, queue_pairs: int = 1, seed: int = 0
) -> LoadBalancer:
    """Return the load balancer of a policy: ``ecmp``, ``spray`` or ``assigned``.

    Args:
        policy: its name.
        topology: the fabric it routes over.
        queue_pairs: connections per NIC port and message (``ecmp``).
        seed: of the switches' hash functions (``ecmp``).
    """
    makers: dict[str, Callable[[], LoadBalancer]] = {
        "ecmp": lambda: EcmpBalancer(PathTable(topology), queue_pairs=queue_pairs, seed=seed),
        "spray": lambda: SprayBalancer(PathTable(topology)),
        "assigned": lambda: AssigningBalancer(PathTable(topology)),
    }
    if policy not in makers:
        raise ConfigError(
            f"unknown load balancing {policy!r}",
            where="fabric.load_balancing",
            hint=f"Write one of {', '.join(makers)}",
        )
    return makers[policy]()


def split_bytes(num_bytes: int, num_parts: int) -> list[int]:
    """Return parts that differ by at most one byte and add up, larger ones first.

    >>> split_bytes(10, 4)
    [3, 3, 2, 2]
    """
    part, rest = divmod(num_bytes, num_parts)
    return [part + 1] * rest + [part] * (num_parts - rest)


def mix64(value: int) -> int:
    """Return 64 bits that depend on all bits of ``value``.

    Source: finalizer of SplitMix64, Steele, Lea and Flood, OOPSLA 2014.
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class EcmpBalancer:
    """Per-connection ECMP, hop by hop, as switches do it.

    Each NIC port of a message opens ``queue_pairs`` connections. Every switch hashes the 5-tuple
    (source port, destination port, UDP source port; protocol and UDP destination port are equal for
    all RoCEv2) among all its equal-cost ports, parallel cables included. The hash is ``mix64``
    chained over the fields, the seed and, unless ``salt_by_switch`` is off, the switch: without
    that salt tiers repeat each other's choice and part of the paths is never used.
    """

    def __init__(
        self, paths: PathTable, *, queue_pairs: int = 1, seed: int = 0, salt_by_switch: bool = True
    ) -> None:
        """Prepare one hash salt per switch."""
        if queue_pairs < 1:
            raise ConfigError(
                f"{queue_pairs} queue pairs", where="fabric.queue_pairs", hint="Write 1 or more"
            )
        self._paths, self._queue_pairs = paths, queue_pairs
        num_switches = paths.topology.num_switches
        self._seed = mix64(seed)
        self._salts = [mix64(s + 1) if salt_by_switch else 0 for s in range(num_switches)]

    @property
    def name(self) -> str:
        """Return ``ecmp(n qp)``."""
        return f"ecmp({self._queue_pairs} qp)"

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of the real channels."""
        return self._paths.topology.channel_capacity_bps

    def route(
        self, src_gpu: int, dst_gpu: int, num_bytes: int, flow_key: int
    ) -> tuple[SubFlow, ...]:
        """Return one sub-flow per port pair and queue pair."""
        paths = self._paths
        if paths.topology.same_server(src_gpu, dst_gpu):
            return ()
        pairs = paths.port_pairs(src_gpu, dst_gpu)
        parts = split_bytes(num_bytes, len(pairs) * self._queue_pairs)
        subflows = []
        for position, size in enumerate(parts):
            # dealt in turn, so that a short message still uses all ports
            queue_pair, pair = divmod(position, len(pairs))
            src_port, dst_port = pairs[pair]
            if size:
                udp_port = flow_key * self._queue_pairs + queue_pair
                path = self._path(src_gpu, src_port, dst_gpu, dst_port, udp_port)
                subflows.append(SubFlow(path, size))
        return tuple(subflows)

    def _path(
        self, src_gpu: int, src_port: int, dst_gpu: int, dst_port: int, udp_port: int
    ) -> tuple[int, ...]:
        paths = self._paths
        key = mix64(self._seed ^ paths.uplink(src_gpu, src_port))
        key = mix64(mix64(key ^ paths.downlink(dst_gpu, dst_port)) ^ (udp_port & _MASK))
        switch = paths.access_switch(src_gpu, src_port)
        target = paths.access_switch(dst_gpu, dst_port)
        channels = [paths.uplink(src_gpu, src_port)]
        while switch != target:
            choices = paths.channels_toward(switch, target)
            # the high bits scaled to the number of choices: no bias at any count
            channel = choices[(mix64(key ^ self._salts[switch]) * len(choices)) >> 64]
            channels.append(channel)
            switch = paths.next_switch(channel)
        channels.append(paths.downlink(dst_gpu, dst_port))
        return tuple(channels)

    @property
    def rules(self) -> PathRules:
        """Return fabric, queue pairs, seed and salts."""
        return PathRules(
            policy=Policy.ECMP,
            paths=self._paths,
            queue_pairs=self._queue_pairs,
            seed=self._seed,
            salts=self._salts,
        )

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Do nothing: a hash remembers no load."""

    def channel_name(self, channel: int) -> str:
        """Return the name of a real channel."""
        return self._paths.topology.channel_name(channel)


class SprayBalancer:
    """Ideal per-packet spraying: every stage of equal-cost channels is one pooled channel.

    Exact for perfectly even spraying where all messages that use a channel of a stage use the whole
    stage evenly, as in folded Clos and flat ZCube; other fabrics are refused. Pooled channels have
    ids after the real ones.
    """

    def __init__(self, paths: PathTable) -> None:
        """Find the pools of all pairs of access switches."""
        self._paths = paths
        self._pools = SprayPools(paths)

    @property
    def name(self) -> str:
        """Return ``spray``."""
        return "spray"

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of the real channels, then of the pooled ones."""
        return self._pools.channel_capacity_bps

    def route(
        self,
        src_gpu: int,
        dst_gpu: int,
        num_bytes: int,
        flow_key: int,  # noqa: ARG002 - the interface of all policies
    ) -> tuple[SubFlow, ...]:
        """Return one sub-flow per port pair."""
        paths = self._paths
        if paths.topology.same_server(src_gpu, dst_gpu):
            return ()
        pairs = paths.port_pairs(src_gpu, dst_gpu)
        subflows = []
        for (src_port, dst_port), size in zip(
            pairs, split_bytes(num_bytes, len(pairs)), strict=True
        ):
            source = paths.access_switch(src_gpu, src_port)
            stages = self._pools.stages(source, paths.access_switch(dst_gpu, dst_port))
            ends = paths.uplink(src_gpu, src_port), paths.downlink(dst_gpu, dst_port)
            if size:
                subflows.append(SubFlow((ends[0], *stages, ends[1]), size))
        return tuple(subflows)

    @property
    def rules(self) -> PathRules:
        """Return fabric and stages."""
        return PathRules(
            policy=Policy.SPRAY, paths=self._paths, stages=self._pools.stages_by_switches
        )

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Do nothing: spraying remembers no load."""

    def channel_name(self, channel: int) -> str:
        """Return the name of a real or pooled channel."""
        return self._pools.channel_name(channel)


def _rotated(items: Sequence[int], turn: int) -> Sequence[int]:
    """Return the items in turn: as they are, but beginning elsewhere every time."""
    if len(items) == 1:
        return items
    first = turn % len(items)
    return [*items[first:], *items[:first]]


class AssigningBalancer:
    """Path distribution: each sub-flow gets the least loaded of its shortest paths when it starts.

    The load of a channel is the bytes of the sub-flows assigned to it and not yet released. The
    path with the smallest largest load is taken; ties go to the smaller sum so far, then in turn
    per source switch, so that an idle fabric is used evenly. The port rule is
    ``PathTable.port_pairs``, so in ZCube only the choice among the parallel cables of one switch
    pair is left.

    Invariants (checked by ``check_invariants``):
        I1. no load is negative.
    """

    def __init__(self, paths: PathTable) -> None:
        """Start without load."""
        self._paths = paths
        self._turns = [0] * paths.topology.num_switches
        self._load_bytes = [0] * paths.topology.num_channels
        # per bundle: its least loaded channel, and the load of that one
        self._lightest: list[int] = [channels[0] for channels in paths.bundle_channels]
        self._least_bytes = [0] * len(self._lightest)

    @property
    def name(self) -> str:
        """Return ``assigned``."""
        return "assigned"

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of the real channels."""
        return self._paths.topology.channel_capacity_bps

    def route(
        self,
        src_gpu: int,
        dst_gpu: int,
        num_bytes: int,
        flow_key: int,  # noqa: ARG002 - the interface of all policies
    ) -> tuple[SubFlow, ...]:
        """Return one sub-flow per port pair and remember its load until it is released."""
        paths = self._paths
        if paths.topology.same_server(src_gpu, dst_gpu):
            return ()
        pairs = paths.port_pairs(src_gpu, dst_gpu)
        subflows = []
        for (src_port, dst_port), size in zip(
            pairs, split_bytes(num_bytes, len(pairs)), strict=True
        ):
            if size:
                source = paths.access_switch(src_gpu, src_port)
                middle = self._least_loaded(source, paths.access_switch(dst_gpu, dst_port))
                ends = paths.uplink(src_gpu, src_port), paths.downlink(dst_gpu, dst_port)
                self._add_load(middle, size)
                subflows.append(SubFlow((ends[0], *middle, ends[1]), size))
        return tuple(subflows)

    def _least_loaded(self, source: int, target: int) -> list[int]:
        """Return the channels of the best path, found stage by stage from the source."""
        paths, least = self._paths, self._least_bytes
        heads = paths.bundle_head
        turn = self._turns[source]
        self._turns[source] = turn + 1
        cost = {source: (0, 0)}
        came_by: dict[int, tuple[int, int]] = {}
        while target not in cost:
            reached: dict[int, tuple[int, int]] = {}
            for switch, (largest, total) in cost.items():
                for bundle in _rotated(paths.bundles_toward(switch, target), turn):
                    here, head = least[bundle], heads[bundle]
                    # the hottest lines of this policy: no call for a maximum
                    candidate = (here if largest < here else largest, total + here)  # noqa: FURB136
                    known = reached.get(head)
                    if known is None or candidate < known:
                        reached[head] = candidate
                        came_by[head] = (bundle, switch)
            cost = reached
        channels: list[int] = []
        while target != source:
            bundle, target = came_by[target]
            channels.append(self._lightest[bundle])
        return channels[::-1]

    def _add_load(self, channels: Sequence[int], num_bytes: int) -> None:
        load, paths = self._load_bytes, self._paths
        for channel in channels:
            load[channel] += num_bytes
            assert load[channel] >= 0, "I1: released more than was routed"
            bundle = paths.bundle_of[channel]
            lightest = min(
                _rotated(
                    paths.bundle_channels[bundle], paths.bundle_channels[bundle].index(channel) + 1
                ),
                key=load.__getitem__,
            )
            self._lightest[bundle], self._least_bytes[bundle] = lightest, load[lightest]

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Take the load of finished or dropped sub-flows away."""
        for subflow in subflows:
            self._add_load(subflow.channels[1:-1], -subflow.num_bytes)

    @property
    def rules(self) -> PathRules:
        """Return the fabric; load assigned so far is left out."""
        return PathRules(policy=Policy.ASSIGNED, paths=self._paths)

    @property
    def num_loaded_channels(self) -> int:
        """Return the channels that carry assigned load; 0 once everything was released."""
        return sum(1 for load in self._load_bytes if load)

    def channel_name(self, channel: int) -> str:
        """Return the name of a real channel."""
        return self._paths.topology.channel_name(channel)

    def check_invariants(self) -> None:
        """Assert I1."""
        assert min(self._load_bytes) >= 0, "I1"
