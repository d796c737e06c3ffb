"""What every policy offers, and how a message is striped over the ports of its NIC."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.routing_tables import PathRules
from kvfabric.units import ceil_div


@dataclass(frozen=True, slots=True)
class SubFlow:
    """A part of a message that takes one path: channels from NIC port to NIC port, in order."""

    channels: tuple[int, ...]
    num_bytes: int


class LoadBalancer(Protocol):
    """Turns messages into sub-flows; only ``assigned`` remembers anything between calls."""

    @property
    def name(self) -> str:
        """Return the policy with its parameters, such as ``ecmp(4 qp)``."""
        ...

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of every channel id that a route may contain."""
        ...

    def route(
        self, src_gpu: int, dst_gpu: int, num_bytes: int, flow_key: int
    ) -> tuple[SubFlow, ...]:
        """Return the sub-flows of a message; their bytes add up to ``num_bytes``.

        Equal arguments with an equal ``flow_key`` are the same connections, so all policies but
        ``assigned`` send them the same way. Empty within a server and for a message of no bytes.
        """
        ...

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Take back what ``route`` returned, once it has been carried or dropped."""
        ...

    def channel_name(self, channel: int) -> str:
        """Return the name of a channel for reports."""
        ...

    @property
    def rules(self) -> PathRules:
        """Return what decides the paths, for the compiled form of the policy."""
        ...


class StatelessBalancer:
    """A policy over the real channels that remembers no load."""

    def __init__(self, paths: PathTable) -> None:
        """Take the paths to choose among."""
        self._paths = paths

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of the real channels."""
        return self._paths.topology.channel_capacity_bps

    def release(self, subflows: Sequence[SubFlow]) -> None:
        """Do nothing: no load is remembered."""

    def channel_name(self, channel: int) -> str:
        """Return the name of a real channel."""
        return self._paths.topology.channel_name(channel)


@dataclass(frozen=True, slots=True)
class Stripe:
    """A part of a message between two NIC ports.

    Attributes:
        src_gpu: where it leaves; differs from the source of the message under PXN.
        src_port: port of that GPU's NIC.
        dst_gpu: where it arrives.
        dst_port: port of that GPU's NIC.
        number: of the stripe among those of this pair of ports.
        num_bytes: at least 1.
    """

    src_gpu: int
    src_port: int
    dst_gpu: int
    dst_port: int
    number: int
    num_bytes: int


def stripes(
    paths: PathTable,
    src_gpu: int,
    dst_gpu: int,
    num_bytes: int,
    *,
    most_per_port: int = 1,
    least_bytes: int = 1,
) -> Iterator[Stripe]:
    """Yield the stripes of a message, dealt over the ports in turn; none within a server.

    Args:
        paths: say which port sends to which.
        src_gpu: source of the message.
        dst_gpu: its destination.
        num_bytes: its size; no stripe is empty.
        most_per_port: parts that each pair of ports is cut into where the message is long enough.
        least_bytes: a further part is made for every so many bytes of a port.
    """
    if not num_bytes or paths.topology.same_server(src_gpu, dst_gpu):
        return
    ends = paths.ends(src_gpu, dst_gpu)
    num_ports = len(ends.port_pairs)
    num_parts = num_ports * min(most_per_port, ceil_div(num_bytes, num_ports * least_bytes))
    for position, size in enumerate(split_bytes(num_bytes, num_parts)):
        # dealt in turn, so that a short message still uses all ports
        number, pair = divmod(position, num_ports)
        if size:
            src_port, dst_port = ends.port_pairs[pair]
            yield Stripe(ends.src_gpu, src_port, ends.dst_gpu, dst_port, number, size)


def stripe_path(paths: PathTable, stripe: Stripe, hops: Sequence[int]) -> tuple[int, ...]:
    """Return the channels of a stripe that takes the given hops between its switches."""
    uplink = paths.uplink(stripe.src_gpu, stripe.src_port)
    downlink = paths.downlink(stripe.dst_gpu, stripe.dst_port)
    return tuple(paths.channels_of(uplink, hops, downlink, stripe.dst_gpu))


def split_bytes(num_bytes: int, num_parts: int) -> list[int]:
    """Return parts that differ by at most one byte and add up, larger ones first.

    >>> split_bytes(10, 4)
    [3, 3, 2, 2]
    """
    part, rest = divmod(num_bytes, num_parts)
    return [part + 1] * rest + [part] * (num_parts - rest)
