"""Buffers and loop delay of priority flow control (PFC), shared by both back-pressure engines."""

from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import FloatArray
from kvfabric.units import NS_PER_S

_FRAME_BYTES = 4160  # 4,096 bytes of payload and 64 of RoCEv2 headers
_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PfcParams:
    """What a switch allows each ingress port, and how long a pause takes to act.

    The defaults are those of the packet-level runs the engines are compared with: uet-htsim, RoCE
    with PFC alone, thresholds of 60 and 40 packets, links of 500 ns, switches of 300 ns.

    Attributes:
        xoff_bytes: bytes from one ingress port held in the switch at which its sender is paused.
        xon_bytes: bytes below which that sender may go on.
        loop_delay_ns: from the crossing of a threshold to its effect on the arriving stream: the
            pause frame, the link both ways, the switch, and the frames already begun.
        mtu_bytes: a full frame on the wire.
        pauses_queue_pair: whether a pause stops only the queue pair of a NIC that filled its share
            of the budget, instead of the NIC port as a whole. Switches always pause whole ports.
        num_priorities: lossless classes, each with its own thresholds, queues and pauses.
    """

    xoff_bytes: int = 60 * _FRAME_BYTES
    xon_bytes: int = 40 * _FRAME_BYTES
    loop_delay_ns: int = 2_100
    mtu_bytes: int = _FRAME_BYTES
    pauses_queue_pair: bool = False
    num_priorities: int = 1

    def __post_init__(self) -> None:
        """Refuse what no switch can be set to."""
        _check(self.mtu_bytes > 0, "mtu_bytes", self.mtu_bytes, "a frame above 0 bytes")
        _check(self.loop_delay_ns >= 0, "loop_delay_ns", self.loop_delay_ns, "0 ns or more")
        _check(
            self.xon_bytes >= self.mtu_bytes,
            "xon_bytes",
            self.xon_bytes,
            f"at least one frame of {self.mtu_bytes} bytes",
        )
        _check(
            self.xoff_bytes >= self.xon_bytes,
            "xoff_bytes",
            self.xoff_bytes,
            f"at least xon_bytes, {self.xon_bytes}",
        )
        _check(
            1 <= self.num_priorities <= 8,
            "num_priorities",
            self.num_priorities,
            "1 to 8",
        )

    @property
    def budget_bytes(self) -> float:
        """Return what an ingress port holds on average while its sender is paused and resumed."""
        return (self.xoff_bytes + self.xon_bytes) / 2

    def loop_share(self, capacity_bps: FloatArray) -> FloatArray:
        """Return beta, the bytes in the pause loop over the budget, of channels of these rates.

        beta = C * tau / B, with C in bytes/s, tau the loop delay, B the budget. At 1 and above the
        loop alone takes the whole budget and a channel could not run at its rate.
        """
        loop_s = self.loop_delay_ns / NS_PER_S
        share: FloatArray = capacity_bps / _BITS_PER_BYTE * loop_s / self.budget_bytes
        return share


def _check(is_valid: bool, name: str, value: int, hint: str) -> None:
    if not is_valid:
        raise ConfigError(f"{name} is {value}", where=f"fabric.pfc.{name}", hint=f"Write {hint}")
