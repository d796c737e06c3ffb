"""The last steps that builders share: blocks of cables, the finished fabric, the nearest sizes."""

from collections.abc import Iterable, Sequence

import numpy as np

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.graph import (
    Cable,
    IntArray,
    LengthClass,
    LinkTable,
    Medium,
    Scope,
    Switch,
    Topology,
    access_links_of,
    join_blocks,
    link_block,
)
from kvfabric.fabric.request import FabricRequest


def check_layers(request: FabricRequest, kind: str, layers: int) -> None:
    """Refuse an oversubscription or a number of tiers that the kind does not have."""
    if request.oversubscription != 1:
        raise UnsupportedError(
            f"{kind} with oversubscription {request.oversubscription}",
            where="fabric.oversubscription",
            hint="Leave it at 1",
        )
    if request.num_tiers not in {None, layers}:
        raise ConfigError(
            f"{kind} with {request.num_tiers} tiers",
            where="fabric.num_tiers",
            hint=f"Write {layers} or leave it out",
        )


def host_block(
    request: FabricRequest,
    switch: IntArray,
    *,
    medium: Medium,
    length: LengthClass,
    ports_per_nic: int = 1,
) -> LinkTable:
    """Return one cable from a NIC port of every GPU to the switch given for it: ``[num_gpus]``."""
    cable = Cable(
        rate_bps=request.host_rate_bps(ports_per_nic),
        scope=Scope.HOST,
        medium=medium,
        length=length,
    )
    return link_block(np.arange(request.num_gpus), request.num_gpus + switch, cable)


def fabric_block(
    request: FabricRequest,
    switch_a: IntArray,
    switch_b: IntArray,
    *,
    medium: Medium = Medium.FIBRE,
    length: LengthClass = LengthClass.HALL,
) -> LinkTable:
    """Return one cable per pair of switch indices, of any shape."""
    cable = Cable(rate_bps=request.port_rate_bps, scope=Scope.FABRIC, medium=medium, length=length)
    first = request.num_gpus
    return link_block(first + switch_a.ravel(), first + switch_b.ravel(), cable)


def assemble(
    request: FabricRequest,
    *,
    kind: str,
    title: str,
    switches: tuple[Switch, ...],
    blocks: Sequence[LinkTable],
    num_tiers: int = 1,
    hosts_forward: bool = False,
) -> Topology:
    """Return the finished fabric, with its invariants checked."""
    links = join_blocks(blocks)
    topology = Topology(
        kind=kind,
        name=f"{title}, {request.num_gpus} GPUs, radix {request.radix}",
        num_gpus=request.num_gpus,
        gpus_per_server=request.gpus_per_server,
        nic_rate_bps=request.nic_rate_bps,
        port_rate_bps=request.port_rate_bps,
        num_tiers=num_tiers,
        switches=switches,
        links=links,
        access_links=access_links_of(links, request.num_gpus),
        hosts_forward=hosts_forward,
    )
    topology.check_invariants()
    return topology


def nearest(sizes: Iterable[int], wanted: int) -> str:
    """Return the next smaller and the next larger size as text such as ``968 or 1024``."""
    known = sorted(set(sizes))
    below = [size for size in known if size < wanted]
    above = [size for size in known if size > wanted]
    return " or ".join(str(size) for size in below[-1:] + above[:1])
