"""Switches by capacity class and product: ports, rates, latency and power, with a source each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import format_rate

_READ = "2026-11-30"
_GBIT = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchModel:
    """One switch as it is sold, or one capacity class where products of all makers are alike.

    Attributes:
        key: catalog name.
        num_ports: cages at the full rate.
        cage_rate_bps: of one cage; a cage may be broken out into 2, 4 or 8 slower ports.
        port_latency_ns: first bit in to first bit out, or None where unpublished.
        power_w: typical, without optics, or None where unpublished.
        planning_power_w: what racks are planned with; the published power, or an assumed one.
        rack_units: height, as ``SHAPES`` says.
    """

    key: str
    num_ports: int
    cage_rate_bps: int
    port_latency_ns: int | None = None
    power_w: float | None = None
    planning_power_w: float
    rack_units: int
    source: Source

    @property
    def capacity_bps(self) -> int:
        """Return the capacity of all ports, one way."""
        return self.num_ports * self.cage_rate_bps

    def radix_at(self, port_rate_bps: int) -> int:
        """Return the number of ports at a rate; a cage splits into 1, 2, 4 or 8 equal ports.

        >>> SWITCHES["51.2t"].radix_at(400_000_000_000)
        128
        """
        rates = [self.cage_rate_bps // split for split in (1, 2, 4, 8)]
        if port_rate_bps not in rates:
            raise ConfigError(
                f"switch {self.key} has no ports of {format_rate(port_rate_bps)}",
                where="fabric.port_rate",
                hint=f"Write one of {', '.join(map(format_rate, rates))}; or give the radix",
            )
        return self.capacity_bps // port_rate_bps


SHAPES = Source(
    SourceKind.ASSUMED,
    "32 cages fill 1 rack unit, 64 cages 2 (as FS N9600-64OD and NVIDIA SN5600; 64 cages of 400G "
    "also come in 1); power of classes without a published one by halving and rounding up",
)
_CLASS = Source(
    SourceKind.PUBLISHED,
    "capacity classes of From ATOP to ZCube, SIGCOMM 2025, Table 7 and section 4.1",
    _READ,
)
_MODELS = (
    SwitchModel(
        key="6.4t",
        num_ports=32,
        cage_rate_bps=200 * _GBIT,
        planning_power_w=250.0,
        rack_units=1,
        source=Source(SourceKind.ASSUMED, "the next smaller class, 32 x 200G, by halving 12.8T"),
    ),
    SwitchModel(
        key="12.8t",
        num_ports=32,
        cage_rate_bps=400 * _GBIT,
        planning_power_w=400.0,
        rack_units=1,
        source=_CLASS,
    ),
    SwitchModel(
        key="25.6t",
        num_ports=64,
        cage_rate_bps=400 * _GBIT,
        planning_power_w=700.0,
        rack_units=2,
        source=_CLASS,
    ),
    SwitchModel(
        key="51.2t",
        num_ports=64,
        cage_rate_bps=800 * _GBIT,
        planning_power_w=940.0,
        rack_units=2,
        power_w=940.0,
        source=Source(
            SourceKind.PUBLISHED,
            "64 x 800G as FS N9600-64OD (product 250955) and NVIDIA SN5600; "
            "940 W is SN5600 typical, from a secondary copy",
            _READ,
        ),
    ),
    SwitchModel(
        key="qm9700",
        num_ports=64,
        cage_rate_bps=400 * _GBIT,
        planning_power_w=700.0,
        rack_units=1,
        source=Source(
            SourceKind.DATASHEET,
            "NVIDIA DGX SuperPOD H100 reference architecture, network fabrics: 64-port QM9700",
            _READ,
        ),
    ),
    SwitchModel(
        key="cx864e-n",
        num_ports=64,
        cage_rate_bps=800 * _GBIT,
        planning_power_w=1000.0,
        rack_units=2,
        port_latency_ns=560,
        source=Source(
            SourceKind.DATASHEET, "Asterfusion CX864E-N, cloudswit.ch AI inference network", _READ
        ),
    ),
)

SWITCHES: Mapping[str, SwitchModel] = MappingProxyType({model.key: model for model in _MODELS})
DEFAULT_SWITCH = SWITCHES["51.2t"]
CLASSES: tuple[SwitchModel, ...] = tuple(SWITCHES[k] for k in ("6.4t", "12.8t", "25.6t", "51.2t"))


def lanes_of(cage_rate_bps: int, rate_bps: int) -> int:
    """Return into how many equal ports a cage is split so that each carries ``rate_bps``.

    >>> lanes_of(800_000_000_000, 200_000_000_000)
    4
    """
    return next((n for n in (8, 4, 2) if cage_rate_bps >= n * rate_bps), 1)


def smallest_class(capacity_bps: int) -> SwitchModel:
    """Return the smallest capacity class that offers ``capacity_bps``.

    48 ports of 200G are built on a 12.8 Tbit/s switch with some ports left over.
    """
    for model in CLASSES:
        if model.capacity_bps >= capacity_bps:
            return model
    raise ConfigError(
        f"no switch of {format_rate(capacity_bps)} is in the catalog",
        where="fabric.radix",
        hint=f"The largest offers {format_rate(CLASSES[-1].capacity_bps)}",
    )
