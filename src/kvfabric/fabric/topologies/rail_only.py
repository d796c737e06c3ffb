"""Rail-only: one Clos of one or two tiers per rail, and no switch that joins two rails.

GPUs of different rails reach each other through their server. Source: arXiv 2307.12169 (rail-only
networks), and the counts of "From ATOP to ZCube", SIGCOMM 2025, Table 7.
"""

from kvfabric.fabric.graph import Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.clos import ClosStyle, wire_clos
from kvfabric.fabric.topologies.multi_plane import shape_of_planes


def build_rail_only(request: FabricRequest) -> Topology:
    """Build a Clos per rail; rail i has GPU i of every server."""
    shape = shape_of_planes(request, request.gpus_per_server, ports=1, tiers=(1, 2))
    return wire_clos(request, shape, ClosStyle(kind="rail-only", title="Rail-only"))
