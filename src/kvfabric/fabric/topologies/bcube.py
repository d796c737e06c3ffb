"""BCube(n, k): a server-centric fabric; switches never meet, and NICs pass on what is not theirs.

n^k GPUs with k NIC ports each, k levels of n^(k-1) switches with n ports. Two GPUs whose numbers
differ in d digits to base n are 2d cables apart, over d switches and d - 1 NICs in between.

Source: Guo et al., "BCube: A High Performance, Server-centric Network Architecture for Modular Data
Centers", SIGCOMM 2009, where this is BCube_(k-1); written BCube(n, k) as in "From ATOP to ZCube",
SIGCOMM 2025.
"""

from kvfabric.fabric.graph import SwitchRole, Topology, number_switches
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import assemble, check_layers
from kvfabric.fabric.topologies.cubes import find_cube, level_blocks

KIND = "bcube"


def build_bcube(request: FabricRequest) -> Topology:
    """Build BCube(n, k) with exactly n^k GPUs; ``shape`` k is the number of levels, by default 2.

    NIC port l leads to level l: port 0 over copper to the switch beside the server, the others over
    fibre.
    """
    cube = find_cube(request, KIND, ports_per_side=1)
    check_layers(request, KIND, cube.k)
    return assemble(
        request,
        kind=KIND,
        title=f"BCube({cube.n},{cube.k})",
        switches=number_switches(SwitchRole.LEAF, cube.k * cube.switches_per_level, request.radix),
        blocks=level_blocks(request, cube),
        num_tiers=cube.k,
        hosts_forward=True,
    )
