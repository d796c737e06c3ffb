"""What direct networks (Dragonfly, Slim Fly, Jellyfish) share: one layer of routers with GPUs."""

from collections.abc import Sequence

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import (
    LengthClass,
    LinkTable,
    Medium,
    SwitchRole,
    Topology,
    number_switches,
)
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies.assembly import assemble, host_block


def wire_routers(
    request: FabricRequest,
    cables: Sequence[LinkTable],
    *,
    kind: str,
    title: str,
    num_routers: int,
    gpus_per_router: int,
) -> Topology:
    """Return the fabric of the given cables between routers, with the GPUs attached.

    GPUs fill the routers in order, ``gpus_per_router`` each; the last routers may have none. A GPU
    hangs on its router by copper of 3 m: both stand in one rack.
    """
    hosts = host_block(
        request,
        np.arange(request.num_gpus) // gpus_per_router,
        medium=Medium.COPPER,
        length=LengthClass.RACK,
    )
    return assemble(
        request,
        kind=kind,
        title=title,
        switches=number_switches(SwitchRole.ROUTER, num_routers, request.radix),
        blocks=[hosts, *cables],
    )


def check_router_ports(request: FabricRequest, kind: str, ports: int, largest: str) -> None:
    """Refuse a router with more ports than the switch has; ``largest`` says what would fit."""
    if ports > request.radix:
        raise ConfigError(
            f"{kind} needs {ports} ports per router, a switch has {request.radix}",
            where="fabric.radix",
            hint=largest,
        )


def check_room(request: FabricRequest, kind: str, room: int, hint: str) -> None:
    """Refuse more GPUs than the routers of a stated shape have ports for."""
    if request.num_gpus > room:
        raise ConfigError(
            f"{kind} of this shape has room for {room} GPUs, not {request.num_gpus}",
            where="fabric.num_gpus",
            hint=hint,
        )
