"""What a builder of a fabric is asked for, checked once for all kinds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kvfabric.errors import ConfigError
from kvfabric.units import format_rate

EMPTY_SHAPE: Mapping[str, int] = MappingProxyType({})


MAX_RADIX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRequest:
    """The sizes every builder needs.

    Attributes:
        num_gpus: a multiple of ``gpus_per_server``; one NIC per GPU.
        radix: ports per switch at ``port_rate_bps``.
        port_rate_bps: of a switch port and a fabric cable.
        nic_rate_bps: of the whole NIC; a NIC port may be slower than a switch port, never faster.
        gpus_per_server: GPUs inside one scale-up domain.
        oversubscription: downlink : uplink capacity of a leaf; 1 is non-blocking.
        num_tiers: layers of switches, or None for the fewest that hold the GPUs.
        shape: further sizes that one kind alone has, such as ``a``, ``p`` and ``h`` of a dragonfly.
    """

    num_gpus: int
    radix: int
    port_rate_bps: int
    nic_rate_bps: int
    gpus_per_server: int = 8
    oversubscription: float = 1.0
    num_tiers: int | None = None
    shape: Mapping[str, int] = field(default_factory=lambda: EMPTY_SHAPE)

    def __post_init__(self) -> None:
        """Refuse sizes no builder can use."""
        for name in ("num_gpus", "radix", "port_rate_bps", "nic_rate_bps", "gpus_per_server"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}", where="fabric", hint="Write 1 or more"
                )
        if self.radix > MAX_RADIX:
            raise ConfigError(
                f"radix is {self.radix}",
                where="fabric.radix",
                hint=f"Write {MAX_RADIX} or less; no switch has more ports",
            )
        if not math.isfinite(self.oversubscription) or self.oversubscription < 1:
            raise ConfigError(
                f"oversubscription is {self.oversubscription}",
                where="fabric",
                hint="Write downlink : uplink capacity as a number of 1 or more",
            )
        self._check_whole_servers()

    def _check_whole_servers(self) -> None:
        rest = self.num_gpus % self.gpus_per_server
        if rest:
            below = self.num_gpus - rest
            sizes = [size for size in (below, below + self.gpus_per_server) if size]
            raise ConfigError(
                f"{self.num_gpus} GPUs are no whole number of servers "
                f"with {self.gpus_per_server} GPUs",
                where="fabric.num_gpus",
                hint=f"Nearest sizes: {' or '.join(map(str, sizes))}",
            )

    def shape_value(self, key: str, default: int, *, least: int = 1) -> int:
        """Return one size of the shape, or the default, or refuse one below the least."""
        value = self.shape.get(key, default)
        if value < least:
            raise ConfigError(
                f"{key} is {value}", where="fabric.shape", hint=f"Write {least} or more"
            )
        return value

    @property
    def num_servers(self) -> int:
        """Return the number of servers."""
        return self.num_gpus // self.gpus_per_server

    def host_rate_bps(self, ports_per_nic: int) -> int:
        """Return the rate of one NIC port, or refuse one faster than the switch port."""
        rate_bps, rest = divmod(self.nic_rate_bps, ports_per_nic)
        if rest or rate_bps > self.port_rate_bps:
            raise ConfigError(
                f"a NIC of {format_rate(self.nic_rate_bps)} with {ports_per_nic} port(s) does not "
                f"fit switch ports of {format_rate(self.port_rate_bps)}",
                where="fabric.port_rate",
                hint=f"Write a port rate of {format_rate(-(-self.nic_rate_bps // ports_per_nic))}",
            )
        return rate_bps


def check_shape_keys(kind: str, shape: Mapping[str, int], known: tuple[str, ...]) -> None:
    """Refuse a key of the shape that the kind does not have, and say which it has."""
    for key, value in shape.items():
        if key not in known:
            hint = f"Write {' or '.join(known)}" if known else f"Leave the shape of {kind} out"
            raise ConfigError(f"{kind} has no size {key!r}", where="fabric.shape", hint=hint)
        if value < 0:
            raise ConfigError(f"{key} is {value}", where="fabric.shape", hint="Write 1 or more")
