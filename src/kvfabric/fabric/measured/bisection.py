"""Bisection bandwidth: what the first half of the servers can send to the second half."""

import numpy as np

from kvfabric.fabric.graph import IntArray, Scope, Topology
from kvfabric.fabric.measured.max_flow import FlowNetwork


def bisection_bps(topology: Topology) -> int | None:
    """Return the largest flow from the first half of the servers, in order, to the second half.

    One direction, in bit/s, with any split of the traffic over paths; GPUs of a half may send for
    each other. It is the smallest cut between these two halves; other halves may have a smaller
    one, and finding the smallest of all is NP-hard. Of an odd number of servers the middle one is
    in the second half. None with a single server.
    """
    half = topology.gpus_per_server * (topology.num_gpus // topology.gpus_per_server // 2)
    if not half:
        return None
    source, sink = topology.num_switches, topology.num_switches + 1
    network = FlowNetwork(topology.num_switches + 2)
    links = topology.links
    host = links.scope == Scope.HOST
    switch = links.end_b - topology.num_gpus
    first, second = host & (links.end_a < half), host & (links.end_a >= half)
    network.add_arcs(
        (source, at, rate, 0) for at, rate in _sums(switch[first], links.rate_bps[first])
    )
    network.add_arcs(
        (at, sink, rate, 0) for at, rate in _sums(switch[second], links.rate_bps[second])
    )
    # all parallel cables of two switches are one arc, each way
    pair = (links.end_a[~host] - topology.num_gpus) * topology.num_switches + switch[~host]
    network.add_arcs(
        (*divmod(key, topology.num_switches), rate, rate)
        for key, rate in _sums(pair, links.rate_bps[~host])
    )
    return network.max_flow(source, sink)


def _sums(keys: IntArray, rates_bps: IntArray) -> list[tuple[int, int]]:
    """Return the keys in ascending order, each with the sum of its rates."""
    distinct, place = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(sums, place, rates_bps)
    return list(zip(distinct.tolist(), sums.tolist(), strict=True))
