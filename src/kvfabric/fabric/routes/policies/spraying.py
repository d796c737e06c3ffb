"""``spray``: every byte evenly over all equal-cost channels of each stage."""

from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.balancer import (
    LoadBalancer,
    StatelessBalancer,
    SubFlow,
    stripe_path,
    stripes,
)
from kvfabric.fabric.routes.routing_tables import PathRules, Policy
from kvfabric.fabric.routes.spray_pools import SprayPools


class SprayBalancer(StatelessBalancer):
    """Ideal per-packet spraying: every stage of equal-cost channels is one pooled channel.

    Exact for perfectly even spraying where all messages that use a channel of a stage use the whole
    stage evenly, as in folded Clos and flat ZCube; other fabrics are refused. Pooled channels have
    ids after the real ones.
    """

    def __init__(self, paths: PathTable) -> None:
        """Find the pools of all pairs of access switches."""
        super().__init__(paths)
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
        subflows = []
        for stripe in stripes(paths, src_gpu, dst_gpu, num_bytes):
            source = paths.access_switch(stripe.src_gpu, stripe.src_port)
            target = paths.access_switch(stripe.dst_gpu, stripe.dst_port)
            path = stripe_path(paths, stripe, self._pools.stages(source, target))
            subflows.append(SubFlow(path, stripe.num_bytes))
        return tuple(subflows)

    @property
    def rules(self) -> PathRules:
        """Return fabric and stages."""
        return PathRules(
            policy=Policy.SPRAY, paths=self._paths, stages=self._pools.stages_by_switches
        )

    def channel_name(self, channel: int) -> str:
        """Return the name of a real or pooled channel."""
        return self._pools.channel_name(channel)

    def over_real_channels(self, per_channel: FloatArray) -> FloatArray:
        """Return bytes with those of every pool spread evenly over its channels."""
        return self._pools.over_real_channels(per_channel)


def over_real_channels(balancer: LoadBalancer, per_channel: FloatArray) -> FloatArray:
    """Return bytes per channel id of any policy as bytes per channel of the topology."""
    if isinstance(balancer, SprayBalancer):
        return balancer.over_real_channels(per_channel)
    return per_channel
