"""Which GPUs can reach which: over switches, and through the scale-up domain at either end."""

from collections import Counter

import numpy as np

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.graph import IntArray, Topology

_NAMED_AT_MOST = 8


def switch_components(topology: Topology) -> IntArray:
    """Return ``[num_switches]``: equal numbers for switches that some path joins.

    Where hosts forward, the ports of one NIC are joined as well.
    """
    ends = np.stack([topology.links.end_a, topology.links.end_b], axis=1) - topology.num_gpus
    pairs = [ends[ends[:, 0] >= 0]]
    if topology.hosts_forward:
        access = topology.access_switches
        pairs += [access[:, [0, port]] for port in range(1, topology.ports_per_nic)]
    joined = np.concatenate(pairs)
    label = np.arange(topology.num_switches)
    while True:  # every round halves the distance to the smallest label, at the least
        before = label.copy()
        smallest = np.minimum(label[joined[:, 0]], label[joined[:, 1]])
        np.minimum.at(label, joined[:, 0], smallest)
        np.minimum.at(label, joined[:, 1], smallest)
        label = label[label]
        if (label == before).all():
            return label


def cut_off_gpus(topology: Topology) -> list[int]:
    """Return the GPUs that some GPU of the rest cannot reach, fewest servers first.

    A message may leave through any GPU of its source's server and arrive at any GPU of its
    destination's server (PXN), so two servers reach each other when any of their NIC ports do.
    """
    label = switch_components(topology)[topology.access_switches]
    per_server = topology.gpus_per_server
    reach = [frozenset(row) for row in label.reshape(-1, per_server * label.shape[1]).tolist()]
    counts = Counter(reach)
    kept: list[frozenset[int]] = []
    for components, _ in counts.most_common():
        if all(components & other for other in kept):
            kept.append(components)
    servers = [server for server, components in enumerate(reach) if components not in kept]
    return [server * per_server + rank for server in servers for rank in range(per_server)]


def check_connected(topology: Topology) -> None:
    """Refuse a fabric with GPUs that the others cannot reach.

    Raises:
        UnsupportedError: names them.
    """
    lost = cut_off_gpus(topology)
    if lost:
        raise UnsupportedError(
            f"{topology.name}: {gpu_names(lost)} cut off from the rest",
            where="fabric",
            hint="Every server needs a NIC port with a way to every other server",
        )


def gpu_names(gpus: list[int]) -> str:
    """Return text such as ``GPUs 0-7, 16-23 are`` for ascending numbers; long lists are cut.

    >>> gpu_names([0, 1, 2, 9])
    'GPUs 0-2, 9 are'
    """
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and runs[-1][1] == gpu - 1:
            runs[-1][1] = gpu
        else:
            runs.append([gpu, gpu])
    names = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    rest = f" and more, {len(gpus)} in all," if len(names) > _NAMED_AT_MOST else ""
    text = ", ".join(names[:_NAMED_AT_MOST]) + rest
    return f"GPU {text} is" if len(gpus) == 1 else f"GPUs {text} are"
