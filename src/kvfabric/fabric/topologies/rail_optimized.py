"""The rail-optimised fat-tree: NIC i of every server goes to leaf group i, all over fibre."""

from kvfabric.fabric.graph import Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.clos import ClosStyle, wire_clos
from kvfabric.fabric.topologies.clos_shape import clos_shape, servers_per_leaf


def build_rail_optimized(request: FabricRequest) -> Topology:
    """Build a rail-optimised fat-tree; a pod holds as many leaves of each rail as its ports allow.

    With a single tier every rail meets on the same switch. Where one leaf has ports for several
    whole rails, neighboring rails share it.
    """
    shape = clos_shape(request, num_rails=_num_leaf_groups(request))
    return wire_clos(request, shape, ClosStyle(kind="roft", title="RoFT"))


def _num_leaf_groups(request: FabricRequest) -> int:
    """Return the fewest leaf groups, at least two, that keep every whole rail on one leaf."""
    rails = request.gpus_per_server
    for groups in range(2, rails):
        if rails % groups == 0 and servers_per_leaf(request, groups) >= request.num_servers:
            return groups
    return rails
