"""``assigned``: central path distribution, least loaded at the instant a message starts."""

from collections.abc import Sequence

from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.balancer import Stripe, SubFlow, stripe_path, stripes
from kvfabric.fabric.routes.routing_tables import PathRules, Policy


class AssigningBalancer:
    """Path distribution: each sub-flow gets the least loaded of its shortest paths when it starts.

    The load of a hop is the bytes of the sub-flows assigned to it and not yet released. The path
    with the smallest largest load is taken; ties go to the smaller sum so far, then in turn per
    source switch, so that an idle fabric is used evenly. The port rule is ``PathTable.port_pairs``,
    so in ZCube only the choice among the parallel cables of one switch pair is left. Where hosts
    forward the load of a relay is what it passes on, not what its GPU sends and receives itself.

    Invariants (checked by ``check_invariants``):
        I1. no load is negative.
    """

    def __init__(self, paths: PathTable) -> None:
        """Start without load."""
        self._paths = paths
        self._turns = [0] * paths.topology.num_switches
        self._load_bytes = [0] * len(paths.bundle_of)
        # per bundle: its least loaded hop, and the load of that one
        self._lightest: list[int] = [hops[0] for hops in paths.bundle_channels]
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
        subflows = []
        for stripe in stripes(paths, src_gpu, dst_gpu, num_bytes):
            hops = self._least_loaded(stripe)
            self._add_load(paths.until_gpu(hops, stripe.dst_gpu), stripe.num_bytes)
            subflows.append(SubFlow(stripe_path(paths, stripe, hops), stripe.num_bytes))
        return tuple(subflows)

    def _least_loaded(self, stripe: Stripe) -> list[int]:
        """Return the hops of the best path, found stage by stage from the source."""
        paths, least = self._paths, self._least_bytes
        source = paths.access_switch(stripe.src_gpu, stripe.src_port)
        target = paths.access_switch(stripe.dst_gpu, stripe.dst_port)
        heads = paths.bundle_head
        turn = self._turns[source]
        self._turns[source] = turn + 1
        cost = {source: (0, 0)}
        came_by: dict[int, tuple[int, int]] = {}
        while target not in cost:
            reached: dict[int, tuple[int, int]] = {}
            for switch, (largest, total) in cost.items():
                bundles = self._onward(switch, target, stripe.src_gpu if switch == source else -1)
                for bundle in _rotated(bundles, turn):
                    here, head = least[bundle], heads[bundle]
                    # the hottest lines of this policy: no call for a maximum
                    candidate = (here if largest < here else largest, total + here)  # noqa: FURB136
                    known = reached.get(head)
                    if known is None or candidate < known:
                        reached[head] = candidate
                        came_by[head] = (bundle, switch)
            cost = reached
        hops: list[int] = []
        while target != source:
            bundle, target = came_by[target]
            hops.append(self._lightest[bundle])
        return hops[::-1]

    def _onward(self, switch: int, target: int, without_gpu: int) -> Sequence[int]:
        """Return the bundles toward a target, without those whose lightest hop passes a GPU."""
        paths = self._paths
        bundles = paths.bundles_toward(switch, target)
        if without_gpu < 0 or not paths.relays:
            return bundles
        hops = tuple(self._lightest[bundle] for bundle in bundles)
        return [paths.bundle_of[hop] for hop in paths.without_gpu(hops, without_gpu)]

    def _add_load(self, hops: Sequence[int], num_bytes: int) -> None:
        load, paths = self._load_bytes, self._paths
        for hop in hops:
            load[hop] += num_bytes
            assert load[hop] >= 0, "I1: released more than was routed"
            bundle = paths.bundle_of[hop]
            members = paths.bundle_channels[bundle]
            lightest = min(_rotated(members, members.index(hop) + 1), key=load.__getitem__)
            self._lightest[bundle], self._least_bytes[bundle] = lightest, load[lightest]

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Take the load of finished or dropped sub-flows away."""
        for subflow in subflows:
            self._add_load(self._paths.hops_of(subflow.channels), -subflow.num_bytes)

    @property
    def rules(self) -> PathRules:
        """Return the fabric; load assigned so far is left out."""
        return PathRules(policy=Policy.ASSIGNED, paths=self._paths)

    @property
    def num_loaded_channels(self) -> int:
        """Return the hops that carry assigned load; 0 once everything was released."""
        return sum(1 for load in self._load_bytes if load)

    def channel_name(self, channel: int) -> str:
        """Return the name of a real channel."""
        return self._paths.topology.channel_name(channel)

    def check_invariants(self) -> None:
        """Assert I1."""
        assert min(self._load_bytes) >= 0, "I1"


def _rotated(items: Sequence[int], turn: int) -> Sequence[int]:
    """Return the items in turn: as they are, but beginning elsewhere every time."""
    if len(items) == 1:
        return items
    first = turn % len(items)
    return [*items[first:], *items[:first]]
