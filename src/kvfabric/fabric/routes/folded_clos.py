"""Whether a fabric is a folded Clos, and the numbers by which its paths can be told apart."""

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from kvfabric.fabric.graph import IntArray
from kvfabric.fabric.routes.paths import PathTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldedClos:
    """The numbers of a fabric whose paths go up, then down; planes may stand side by side.

    Attributes:
        bundle_divisors: per bundle, the product over the tiers below its lower end of the most
            channels up from a switch of that tier.
        port_numbers: ``[num_gpus * ports_per_nic]``, NIC ports counted leaf by leaf.
    """

    bundle_divisors: IntArray
    port_numbers: IntArray


def folded_clos(paths: PathTable) -> FoldedClos | None:
    """Return the numbers of a fabric, or None where cables join switches of one tier.

    Tiers are those of ``PathTable``, so fabrics in which all switches have NIC ports, such as flat
    ZCube, are none.
    """
    topology = paths.topology
    if topology.hosts_forward:
        return None
    access = topology.access_switches.ravel()
    tier = paths.tiers
    tail = tier[np.array(paths.bundle_tail, np.int64)]
    head = tier[np.array(paths.bundle_head, np.int64)]
    if (np.abs(tail - head) != 1).any():
        return None
    width = np.array([len(channels) for channels in paths.bundle_channels], np.int64)
    up = np.zeros(topology.num_switches, np.int64)
    np.add.at(up, np.array(paths.bundle_tail, np.int64)[tail < head], width[tail < head])
    tiers = range(int(tier.max(initial=0, where=up > 0)) + 1)
    uplinks = tuple(max(1, int(up[tier == t].max(initial=0))) for t in tiers)
    divisors = np.array(list(accumulate(uplinks, mul, initial=1)), np.int64)
    numbers = np.empty(len(access), np.int64)
    numbers[np.argsort(access, kind="stable")] = np.arange(len(access))
    return FoldedClos(
        bundle_divisors=divisors[np.minimum(tail, head)],
        port_numbers=numbers,
    )
