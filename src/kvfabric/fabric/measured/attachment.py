"""How the NICs of a server hang on the switches: all on one, spread, or both at once."""

from enum import Enum

import numpy as np

from kvfabric.fabric.graph import IntArray, Topology


class Attachment(Enum):
    """Single-rail: a server's NICs share a switch; multi-rail: they are spread over several.

    Straddling: switches take consecutive GPUs, but not whole servers, as routers with few ports do.
    Hybrid, as in ZCube: the ports of a NIC are attached in different ways. Source of the terms:
    z.ai/blog/zcube, 2026-05-20.
    """

    SINGLE_RAIL = "single-rail"
    MULTI_RAIL = "multi-rail"
    STRADDLING = "straddling"
    HYBRID = "hybrid"


def attachment(topology: Topology) -> Attachment:
    """Return how the GPUs are attached, read off the graph port by port."""
    columns = topology.access_switches.T
    kinds = {_attachment_of_port(column, topology.gpus_per_server) for column in columns}
    return kinds.pop() if len(kinds) == 1 else Attachment.HYBRID


def _attachment_of_port(switches: IntArray, gpus_per_server: int) -> Attachment:
    """Return how one port of every NIC is attached; ``switches`` is ``[num_gpus]``."""
    by_server = switches.reshape(-1, gpus_per_server)
    if bool((by_server == by_server[:, :1]).all()):
        return Attachment.SINGLE_RAIL
    num_runs = 1 + np.count_nonzero(switches[1:] != switches[:-1])
    consecutive = num_runs == len(np.unique(switches))
    return Attachment.STRADDLING if consecutive else Attachment.MULTI_RAIL
