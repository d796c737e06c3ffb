"""From the name of a kind of fabric to the graph of one; a new kind is one file and one line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvfabric.catalog.switches import DEFAULT_SWITCH
from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.request import EMPTY_SHAPE, FabricRequest, check_shape_keys
from kvfabric.fabric.topologies import (
    cubes,
    dragonfly,
    hpn,
    jellyfish,
    multi_plane,
    slim_fly,
    zcube,
)
from kvfabric.fabric.topologies.bcube import build_bcube
from kvfabric.fabric.topologies.clos import build_clos
from kvfabric.fabric.topologies.rail_only import build_rail_only
from kvfabric.fabric.topologies.rail_optimized import build_rail_optimized
from kvfabric.fabric.topologies.zcube_recursive import build_zcube_recursive
from kvfabric.units import format_rate


@dataclass(frozen=True, slots=True)
class Builder:
    """How one kind of fabric is built, and what a request for it may say.

    Attributes:
        build: returns the graph, or raises ``ConfigError`` with the nearest sizes that exist.
        ports_per_nic: NIC ports of a GPU, from the shape; the NIC's rate is split evenly over them.
        shape_keys: the keys of ``FabricRequest.shape`` that ``build`` reads.
    """

    build: Callable[[FabricRequest], Topology]
    ports_per_nic: Callable[[Mapping[str, int]], int] = lambda _shape: 1
    shape_keys: tuple[str, ...] = ()

    def num_nic_ports(self, shape: Mapping[str, int]) -> int:
        """Return the NIC ports of a GPU, or refuse a shape that leaves it none."""
        ports = self.ports_per_nic(shape)
        if ports < 1:
            raise ConfigError(
                f"a NIC of {ports} ports", where="fabric.shape", hint="Write 1 or more"
            )
        return ports


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "clos": Builder(build_clos),
        "roft": Builder(build_rail_optimized),
        "rail-only": Builder(build_rail_only),
        "multi-plane": Builder(
            multi_plane.build_multi_plane, multi_plane.ports_per_nic, multi_plane.SHAPE_KEYS
        ),
        "hpn": Builder(hpn.build_hpn, lambda _shape: hpn.PORTS_PER_NIC, hpn.SHAPE_KEYS),
        "zcube": Builder(zcube.build_zcube, lambda _shape: zcube.PORTS_PER_NIC, zcube.SHAPE_KEYS),
        "zcube-recursive": Builder(build_zcube_recursive, cubes.ports_per_nic, cubes.SHAPE_KEYS),
        "bcube": Builder(build_bcube, cubes.ports_per_nic, cubes.SHAPE_KEYS),
        "dragonfly": Builder(dragonfly.build_dragonfly, shape_keys=dragonfly.SHAPE_KEYS),
        "slim-fly": Builder(slim_fly.build_slim_fly, shape_keys=slim_fly.SHAPE_KEYS),
        "jellyfish": Builder(jellyfish.build_jellyfish, shape_keys=jellyfish.SHAPE_KEYS),
    }
)


def build_topology(
    kind: str,
    num_gpus: int,
    *,
    nic_rate_bps: int,
    radix: int | None = None,
    switch_capacity_bps: int | None = None,
    port_rate_bps: int | None = None,
    gpus_per_server: int = 8,
    oversubscription: float = 1.0,
    num_tiers: int | None = None,
    shape: Mapping[str, int] = EMPTY_SHAPE,
) -> Topology:
    """Build a fabric of one kind.

    Args:
        kind: one of ``BUILDERS``.
        num_gpus: GPUs, one NIC each.
        nic_rate_bps: of the whole NIC, over all its ports.
        radix: ports per switch at the port rate; default: what a switch of the capacity offers.
        switch_capacity_bps: used without ``radix``; default: 51.2 Tbit/s.
        port_rate_bps: default: the rate of one NIC port.
        gpus_per_server: GPUs of one scale-up domain.
        oversubscription: downlink : uplink capacity of the leaves, where a kind has it.
        num_tiers: layers of switches; default: the fewest that hold the GPUs.
        shape: further sizes that one kind alone has, such as ``planes``.

    Raises:
        ConfigError: no such kind, or no such fabric; names the nearest sizes that exist.
    """
    builder = find_builder(kind)
    check_shape_keys(kind, shape, builder.shape_keys)
    num_ports = builder.num_nic_ports(shape)
    if nic_rate_bps % num_ports:
        raise ConfigError(
            f"a NIC of {format_rate(nic_rate_bps)} does not split evenly over {num_ports} ports",
            where="fabric.nic_rate",
            hint=f"Write a multiple of {num_ports}, such as {format_rate(num_ports * 200 * 10**9)}",
        )
    port_rate_bps = port_rate_bps or nic_rate_bps // num_ports
    request = FabricRequest(
        num_gpus=num_gpus,
        radix=_radix_of(switch_capacity_bps, port_rate_bps) if radix is None else radix,
        port_rate_bps=port_rate_bps,
        nic_rate_bps=nic_rate_bps,
        gpus_per_server=gpus_per_server,
        oversubscription=oversubscription,
        num_tiers=num_tiers,
        shape=shape,
    )
    return builder.build(request)


def find_builder(kind: str) -> Builder:
    """Return the builder of a kind, or refuse the name with the known ones."""
    if kind not in BUILDERS:
        raise ConfigError(
            f"unknown kind of fabric {kind!r}",
            where="fabric.kind",
            hint=f"Write one of {', '.join(BUILDERS)}",
        )
    return BUILDERS[kind]


def _radix_of(switch_capacity_bps: int | None, port_rate_bps: int) -> int:
    if switch_capacity_bps is None:
        return DEFAULT_SWITCH.radix_at(port_rate_bps)
    if switch_capacity_bps < 2 * port_rate_bps:
        raise ConfigError(
            f"a switch of {format_rate(switch_capacity_bps)} has no two ports of "
            f"{format_rate(port_rate_bps)}",
            where="fabric.switch",
            hint=f"Write at least {format_rate(2 * port_rate_bps)}",
        )
    return switch_capacity_bps // port_rate_bps
