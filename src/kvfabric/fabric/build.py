"""From the name of a kind of fabric to the graph of one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvfabric.catalog.switches import DEFAULT_SWITCH
from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.topologies import zcube
from kvfabric.fabric.topologies.clos import build_clos
from kvfabric.fabric.topologies.rail_optimized import build_rail_optimized
from kvfabric.units import format_rate

BUILDERS: Mapping[str, Callable[[FabricRequest], Topology]] = MappingProxyType(
    {"clos": build_clos, "roft": build_rail_optimized, "zcube": zcube.build_zcube}
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
) -> Topology:
    """Build a fabric of one kind.

    Args:
        kind: ``clos``, ``roft`` or ``zcube``.
        num_gpus: GPUs, one NIC each.
        nic_rate_bps: of the whole NIC; ``zcube`` splits it over two ports.
        radix: ports per switch at the port rate; default: what a switch of the capacity offers.
        switch_capacity_bps: used without ``radix``; default: 51.2 Tbit/s.
        port_rate_bps: default: the rate of one NIC port.
        gpus_per_server: GPUs of one scale-up domain.
        oversubscription: downlink : uplink capacity of the leaves (``clos``, ``roft``).
        num_tiers: layers of switches; default: the fewest that hold the GPUs.

    Raises:
        ConfigError: no such kind, or no such fabric; names the nearest sizes that exist.
    """
    if kind not in BUILDERS:
        raise ConfigError(
            f"unknown kind of fabric {kind!r}",
            where="fabric.kind",
            hint=f"Write one of {', '.join(BUILDERS)}",
        )
    ports_per_nic = zcube.PORTS_PER_NIC if kind == "zcube" else 1
    port_rate_bps = port_rate_bps or nic_rate_bps // ports_per_nic
    request = FabricRequest(
        num_gpus=num_gpus,
        radix=_radix_of(switch_capacity_bps, port_rate_bps) if radix is None else radix,
        port_rate_bps=port_rate_bps,
        nic_rate_bps=nic_rate_bps,
        gpus_per_server=gpus_per_server,
        oversubscription=oversubscription,
        num_tiers=num_tiers,
    )
    return BUILDERS[kind](request)


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
