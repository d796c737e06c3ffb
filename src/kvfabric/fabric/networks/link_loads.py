"""The busiest channels of a fabric over a window of time, and the loads of all of them."""

from dataclasses import dataclass

import numpy as np

from kvfabric.fabric.engines.choice import back_pressure_of
from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.networks.network import BITS_PER_BYTE, LinkLoad
from kvfabric.fabric.routes.load_balancing import LoadBalancer
from kvfabric.fabric.routes.policies.spraying import over_real_channels
from kvfabric.units import NS_PER_S


def busiest_channels(
    balancer: LoadBalancer, carried_bytes: FloatArray, window_ns: int, count: int
) -> list[LinkLoad]:
    """Return the most utilized channels, busiest first, ties by channel; none without a window."""
    if window_ns <= 0:
        return []
    window_s = window_ns / NS_PER_S
    share = carried_bytes * BITS_PER_BYTE / balancer.channel_capacity_bps / window_s
    return [
        LinkLoad(
            balancer.channel_name(channel), round(carried_bytes[channel]), float(share[channel])
        )
        for channel in np.argsort(-share, kind="stable")[:count].tolist()
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChannelLoads:
    """What every channel of a topology went through in a run; arrays are ``[num_channels]``.

    Attributes:
        carried_bytes: on the wire.
        paused_ns: how long its sender was held back; None where the engine knows no pauses.
        peak_queue_bytes: the longest queue that waited for it; None as well.
    """

    carried_bytes: FloatArray
    paused_ns: FloatArray | None = None
    peak_queue_bytes: FloatArray | None = None


def channel_loads(balancer: LoadBalancer, engine: FlowEngine) -> ChannelLoads:
    """Return what an engine has counted so far; pools of ``spray`` spread over their channels."""
    pressure = back_pressure_of(engine)
    return ChannelLoads(
        carried_bytes=over_real_channels(balancer, engine.carried_bytes()),
        paused_ns=None if pressure is None else pressure.paused_ns(),
        peak_queue_bytes=None if pressure is None else pressure.peak_queue_bytes(),
    )
