"""The multi-plane fat-tree: the NICs of a server spread over equal Clos fabrics that never join.

With 8 GPUs per server and 8 planes, GPU i of every server is in plane i. Source: DeepSeek-V3 (ISCA
2025), Table 3, "MPFT". With ``ports`` 8 and 8 planes every NIC has a port in every plane, as in MRC
(arXiv 2605.04333). GPUs of different planes reach each other through their server.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.clos import ClosStyle, wire_clos
from kvfabric.fabric.topologies.clos_shape import (
    ClosShape,
    allowed_tiers,
    clos_shape,
    max_gpus,
    too_many_gpus,
)

SHAPE_KEYS = ("planes", "ports")


def ports_per_nic(shape: Mapping[str, int]) -> int:
    """Return the NIC ports of a GPU."""
    return shape.get("ports", 1)


def build_multi_plane(request: FabricRequest) -> Topology:
    """Build ``planes`` Clos fabrics, by default one per GPU of a server, of one to three tiers."""
    ports = request.shape_value("ports", 1)
    planes = request.shape_value("planes", request.gpus_per_server * ports)
    shape = shape_of_planes(request, planes, ports, tiers=(1, 2, 3))
    title = f"Multi-plane fat-tree, {planes} planes"
    return wire_clos(
        request, shape, ClosStyle(kind="multi-plane", title=title, ports_per_nic=ports)
    )


def shape_of_planes(
    request: FabricRequest, planes: int, ports: int, *, tiers: tuple[int, ...]
) -> ClosShape:
    """Return the shape of equal planes with the fewest tiers that hold their share of the ports.

    Raises:
        ConfigError: a server's NIC ports do not spread evenly, or a plane is too small.
    """
    ports_per_server = request.gpus_per_server * ports
    in_plane, rest = divmod(ports_per_server, planes)
    if rest or not in_plane:
        fitting = [str(n) for n in range(1, ports_per_server + 1) if ports_per_server % n == 0]
        raise ConfigError(
            f"{ports_per_server} NIC port(s) per server do not spread evenly over {planes} planes",
            where="fabric.shape",
            hint=f"Write planes as {', '.join(fitting)}",
        )
    plane = replace(
        request,
        num_gpus=request.num_servers * in_plane,
        gpus_per_server=in_plane,
        nic_rate_bps=request.host_rate_bps(ports),
    )
    allowed = allowed_tiers(request, tiers)
    for num_tiers in allowed:
        if plane.num_gpus <= max_gpus(plane, num_tiers, num_rails=1):
            shape = clos_shape(replace(plane, num_tiers=num_tiers), num_rails=1)
            return replace(shape, num_planes=planes)
    largest = max(max_gpus(plane, num_tiers, num_rails=1) for num_tiers in allowed)
    servers = largest // in_plane
    raise too_many_gpus(request, allowed[-1], servers * request.gpus_per_server)
