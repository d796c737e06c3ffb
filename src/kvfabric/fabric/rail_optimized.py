"""The rail-optimised fat-tree: NIC i of every server goes to leaf group i, all over fibre."""

from kvfabric.fabric.clos import clos_shape, wire_clos
from kvfabric.fabric.graph import Cable, LengthClass, Medium, Scope, Topology
from kvfabric.fabric.request import FabricRequest


def build_rail_optimized(request: FabricRequest) -> Topology:
    """Build a rail-optimised fat-tree; a pod holds as many leaves of each rail as its ports allow.

    With a single tier every rail meets on the same switch.
    """
    shape = clos_shape(request, num_rails=request.gpus_per_server)
    host = Cable(
        rate_bps=request.host_rate_bps(1),
        scope=Scope.HOST,
        medium=Medium.FIBRE,
        length=LengthClass.ROW,
    )
    return wire_clos(request, shape, host, kind="roft", title="RoFT")
