"""How far apart prefill and decode workers are on a fabric, for the choice of receivers."""

from collections.abc import Sequence

import numpy as np

from kvfabric.fabric.graph import IntArray, Topology
from kvfabric.fabric.measured.measures import (
    UNREACHABLE,
    ByteArray,
    relayed_distances,
    switch_distances,
)

Distances = tuple[tuple[int, ...], ...]


def worker_distances(
    topology: Topology,
    senders: Sequence[tuple[int, ...]],
    receivers: Sequence[tuple[int, ...]],
    rank_pairs: Sequence[tuple[int, int]],
) -> Distances:
    """Return by sender and receiver the switches that a hand-off passes, over all pairs of ranks.

    A pair in one server passes none; others take the shortest path over any ports. GPUs that no
    switch joins (other rails of a rail-only fabric) begin with a step inside the sender's server,
    which counts as one more.

    Args:
        topology: the fabric.
        senders: fabric GPUs of each worker that sends, in rank order.
        receivers: the same of each worker that receives.
        rank_pairs: sender's and receiver's rank.

    Returns:
        ``[senders][receivers]``, sums of whole numbers.
    """
    between = relayed_distances(topology) if topology.hosts_forward else switch_distances(topology)
    to_ranks = [dst for _, dst in rank_pairs]
    dst_gpus = np.array([[gpus[rank] for rank in to_ranks] for gpus in receivers], dtype=np.int64)
    rows: list[tuple[int, ...]] = []
    for gpus in senders:
        src_gpus = np.array([gpus[rank] for rank, _ in rank_pairs], dtype=np.int64)
        passed = _switches_passed(topology, between, src_gpus, dst_gpus)
        rows.append(tuple(int(total) for total in passed.sum(axis=1)))
    return tuple(rows)


def _switches_passed(
    topology: Topology, between: ByteArray, src_gpus: IntArray, dst_gpus: IntArray
) -> IntArray:
    """Return ``[receivers, pairs]``: the switches on the shortest path of each pair."""
    size = topology.gpus_per_server
    direct = _over_cables(topology, between, src_gpus[None, :], dst_gpus)
    is_cut_off = direct >= UNREACHABLE
    if is_cut_off.any():
        first = src_gpus // size * size
        over_peers = [
            _over_cables(topology, between, (first + peer)[None, :], dst_gpus) + 1
            for peer in range(size)
        ]
        direct = np.where(is_cut_off, np.min(over_peers, axis=0), direct)
    same_server = dst_gpus // size == (src_gpus // size)[None, :]
    return np.where(same_server, 0, direct)


def _over_cables(
    topology: Topology, between: ByteArray, src_gpus: IntArray, dst_gpus: IntArray
) -> IntArray:
    """Return the switches between GPUs over their nearest ports; ``UNREACHABLE`` or more if none.

    Distances between switches are in cables, so that as many and one more switches are passed.
    """
    access = topology.access_switches
    src_ports = access[src_gpus][..., :, None]
    dst_ports = access[dst_gpus][..., None, :]
    cables: IntArray = between[src_ports, dst_ports].astype(np.int64)
    nearest: IntArray = cables.min(axis=(-2, -1)) + 1
    return nearest
