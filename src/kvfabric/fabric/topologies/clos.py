"""Folded Clos fabrics of one, two or three tiers: which cable goes where.

The rail-optimised fat-tree is the same wiring with another assignment of NICs to leaves; rail-only,
multi-plane and dual-plane fabrics are several such fabrics side by side.
"""

from dataclasses import dataclass

import numpy as np

from kvfabric.fabric.graph import (
    Cable,
    IntArray,
    LengthClass,
    LinkTable,
    Medium,
    Scope,
    Switch,
    SwitchRole,
    Topology,
    link_block,
    number_switches,
)
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import assemble, host_block
from kvfabric.fabric.topologies.clos_shape import ClosShape, clos_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosStyle:
    """What kinds of the Clos family differ in beside their shape.

    Attributes:
        kind: of the builder.
        title: for reports.
        copper_hosts: NICs in the rack of their leaf, over copper; else in the row, over fibre.
        ports_per_nic: NIC ports of a GPU, each with its share of the NIC rate.
        trunk_ports: switch ports at the port rate that one cable between switches takes.
        spine_role: of the switches above the leaves.
    """

    kind: str
    title: str
    copper_hosts: bool = False
    ports_per_nic: int = 1
    trunk_ports: int = 1
    spine_role: SwitchRole = SwitchRole.SPINE


def build_clos(request: FabricRequest) -> Topology:
    """Build a folded Clos: consecutive servers share a leaf, in copper reach in the same rack."""
    style = ClosStyle(kind="clos", title="Clos", copper_hosts=True)
    return wire_clos(request, clos_shape(request, num_rails=1), style)


def wire_clos(request: FabricRequest, shape: ClosShape, style: ClosStyle) -> Topology:
    """Place the cables of a shape and return the finished fabric."""
    blocks = _host_blocks(request, shape, style)
    trunk = Cable(
        rate_bps=request.port_rate_bps * style.trunk_ports,
        scope=Scope.FABRIC,
        medium=Medium.FIBRE,
        length=LengthClass.HALL,
    )
    first_leaf = request.num_gpus
    first_spine = first_leaf + shape.num_leaves
    if shape.num_tiers > 1:
        leaf, spine = _leaf_spine_pairs(shape)
        blocks.append(link_block(first_leaf + leaf, first_spine + spine, trunk))
    if shape.num_tiers > 2:
        spine, core = _spine_core_pairs(shape)
        first_core = first_spine + shape.num_spines
        blocks.append(link_block(first_spine + spine, first_core + core, trunk))
    return assemble(
        request,
        kind=style.kind,
        title=f"{style.title}, {shape.num_tiers} tier(s)",
        switches=_switches(shape, request.radix, style.spine_role),
        blocks=blocks,
        num_tiers=shape.num_tiers,
    )


def _switches(shape: ClosShape, radix: int, spine_role: SwitchRole) -> tuple[Switch, ...]:
    return (
        number_switches(SwitchRole.LEAF, shape.num_leaves, radix)
        + number_switches(spine_role, shape.num_spines, radix)
        + number_switches(SwitchRole.CORE, shape.num_cores, radix)
    )


def leaf_of_port(request: FabricRequest, shape: ClosShape, ports_per_nic: int) -> IntArray:
    """Return ``[num_gpus, ports_per_nic]`` leaf indices: servers in even runs over a rail's leaves.

    The NIC ports of a server, in order, go to plane 0, 1, ... and again to plane 0. Of those in one
    plane, the first share of ``num_rails`` goes to the first leaf group, and so on. Leaves are
    numbered plane by plane, pod by pod, rail by rail, run by run.
    """
    ports_per_server = request.gpus_per_server * ports_per_nic
    server, port = np.divmod(np.arange(request.num_gpus * ports_per_nic), ports_per_server)
    nth, plane = np.divmod(port, shape.num_planes)
    group = nth * shape.num_rails * shape.num_planes // ports_per_server
    runs = shape.num_pods * shape.leaves_per_rail
    pod, run = np.divmod(server * runs // request.num_servers, shape.leaves_per_rail)
    leaf: IntArray = (plane * shape.num_pods + pod) * shape.leaves_per_pod
    leaf += group * shape.leaves_per_rail + run
    return leaf.reshape(request.num_gpus, ports_per_nic)


def _host_blocks(request: FabricRequest, shape: ClosShape, style: ClosStyle) -> list[LinkTable]:
    leaf = leaf_of_port(request, shape, style.ports_per_nic)
    return [
        host_block(
            request,
            leaf[:, port],
            medium=Medium.COPPER if style.copper_hosts else Medium.FIBRE,
            length=LengthClass.RACK if style.copper_hosts else LengthClass.ROW,
            ports_per_nic=style.ports_per_nic,
        )
        for port in range(style.ports_per_nic)
    ]


def _leaf_spine_pairs(shape: ClosShape) -> tuple[IntArray, IntArray]:
    leaf, nth, _ = np.indices((shape.num_leaves, shape.spines_per_pod, shape.leaf_bundle))
    pod = leaf // shape.leaves_per_pod  # counted through all planes
    spine = pod * shape.spines_per_pod + nth
    return leaf.ravel(), spine.ravel()


def _spine_core_pairs(shape: ClosShape) -> tuple[IntArray, IntArray]:
    spine, nth, _ = np.indices((shape.num_spines, shape.cores_per_spine, shape.core_bundle))
    pod, in_pod = np.divmod(spine, shape.spines_per_pod)
    group = pod // shape.num_pods * shape.spines_per_pod + in_pod
    core = group * shape.cores_per_spine + nth
    return spine.ravel(), core.ravel()
