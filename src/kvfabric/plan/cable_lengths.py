"""How long cables are, from where their ends stand: Manhattan distance plus slack.

Within a rack a cable runs down its side. Between racks of one row that are at most two apart it
runs from side to side at the height of the devices. Everywhere else it climbs to a tray above the
racks, follows row and aisle, and comes down again.
"""

import numpy as np

from kvfabric.fabric.graph import FloatArray, IntArray, Topology
from kvfabric.plan.racks import Placement
from kvfabric.protocol.provenance import Source, SourceKind

RACK_UNIT_M = 0.04445
RACK_WIDTH_M = 0.6
ROW_PITCH_M = 2.4
TRAY_ABOVE_M = 0.3
SLACK_M = 1.0
NEAR_RACKS = 2
ROUTING = Source(
    SourceKind.ASSUMED,
    "Manhattan distance between the middles of devices; racks 0.6 m wide, rows 2.4 m apart, tray "
    "0.3 m above the racks, not used between racks of a row up to two apart; 1 m of slack",
)
SOLD_M = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0)


def cable_lengths_m(topology: Topology, placement: Placement) -> FloatArray:
    """Return the estimated length of every cable: ``[num_links]`` in metres, to 0.1 m."""
    rows = np.array([rack.row for rack in placement.racks])[placement.rack_of]
    positions = np.array([rack.position for rack in placement.racks])[placement.rack_of]
    height = (placement.unit_of - 1 + placement.units / 2) * RACK_UNIT_M
    end_a, end_b = device_ends(topology)
    apart = np.abs(positions[end_a] - positions[end_b])
    across = apart * RACK_WIDTH_M + np.abs(rows[end_a] - rows[end_b]) * ROW_PITCH_M
    is_near = (rows[end_a] == rows[end_b]) & (apart <= NEAR_RACKS)
    tray = placement.rules.rack_units * RACK_UNIT_M + TRAY_ABOVE_M
    beside = np.abs(height[end_a] - height[end_b])
    over = 2 * tray - height[end_a] - height[end_b]
    lengths: FloatArray = np.round(across + np.where(is_near, beside, over) + SLACK_M, 1)
    return lengths


def device_ends(topology: Topology) -> tuple[IntArray, IntArray]:
    """Return the device at both ends of every cable: servers first, then switches."""
    num_servers = topology.num_gpus // topology.gpus_per_server
    switches = num_servers - topology.num_gpus
    end_a = np.where(
        topology.links.end_a < topology.num_gpus,
        topology.links.end_a // topology.gpus_per_server,
        topology.links.end_a + switches,
    )
    return end_a, topology.links.end_b + switches


def sold_length_m(length_m: FloatArray) -> FloatArray:
    """Return the shortest length on sale that spans each cable; whole metres above 100.

    >>> sold_length_m(np.array([2.6, 31.0, 120.4])).tolist()
    [3.0, 50.0, 121.0]
    """
    sold = np.array(SOLD_M)
    at = np.searchsorted(sold, length_m)
    longer = np.ceil(length_m)
    found: FloatArray = np.where(at < len(sold), sold[np.minimum(at, len(sold) - 1)], longer)
    return found
