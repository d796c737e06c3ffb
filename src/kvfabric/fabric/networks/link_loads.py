"""The busiest channels of a fabric over a window of time."""

import numpy as np

from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.networks.network import BITS_PER_BYTE, LinkLoad
from kvfabric.fabric.routes.load_balancing import LoadBalancer
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
