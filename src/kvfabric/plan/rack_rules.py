"""What a rack takes: height and power of racks and servers, and where the assumptions come from."""

from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind

_READ = "2026-11-30"
SERVER = Source(
    SourceKind.DATASHEET, "NVIDIA DGX H100: 8 GPUs in 8 rack units, 10.2 kW at most", _READ
)
RACK = Source(
    SourceKind.ASSUMED, "42 rack units; 45 kW: four servers of 10.2 kW and the switch among them"
)
HALL = Source(
    SourceKind.ASSUMED, "racks 0.6 m wide, 20 to a row, 2.4 m from row to row (aisles included)"
)
UNITS_PER_GPU = 1
POWER_PER_GPU_W = 1_275.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RackRules:
    """What a rack takes; None: so much per GPU as ``SERVER`` says.

    Attributes:
        rack_units: usable height of a rack.
        rack_power_w: of everything in a rack.
        server_units: height of a server.
        server_power_w: of a server at most, its NICs included.
        racks_per_row: most racks side by side, where a row can be that short.
    """

    rack_units: int = 42
    rack_power_w: float = 45_000.0
    server_units: int | None = None
    server_power_w: float | None = None
    racks_per_row: int = 20

    def units_of_server(self, num_gpus: int) -> int:
        """Return the height of a server."""
        return self.server_units or UNITS_PER_GPU * num_gpus

    def power_of_server_w(self, num_gpus: int) -> float:
        """Return the power of a server."""
        return self.server_power_w or POWER_PER_GPU_W * num_gpus

    def servers_per_rack(self, num_gpus: int) -> tuple[int, str]:
        """Return how many servers a rack takes, and what bounds them: ``height`` or ``power``.

        Raises:
            ConfigError: not even one.
        """
        by_height = self.rack_units // self.units_of_server(num_gpus)
        by_power = int(self.rack_power_w // self.power_of_server_w(num_gpus))
        if by_height < 1:
            raise ConfigError(
                f"a server of {self.units_of_server(num_gpus)} rack units does not fit into a rack"
                f" of {self.rack_units}",
                where="racks.server_units",
                hint="Lower the height of servers, or raise that of racks",
            )
        if by_power < 1:
            raise ConfigError(
                f"a server of {self.power_of_server_w(num_gpus):,.0f} W is more than the"
                f" {self.rack_power_w:,.0f} W of a rack",
                where="racks.rack_power",
                hint="Lower the power of servers, or raise that of racks",
            )
        return min(by_height, by_power), "height" if by_height <= by_power else "power"
