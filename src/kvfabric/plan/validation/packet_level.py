"""Packet-level runs of RoCE with PFC as a flow engine takes them: channels, paths, when each ends.

Three-tier fat trees of 400 Gbit/s links; the way up is recorded, the way down follows from the core
switch and the target's leaf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from kvfabric.fabric.graph import FloatArray, IntArray
from kvfabric.plan.validation.packet_level_cases import (
    HOSTS_PER_LEAF,
    INCAST128,
    INCAST128_BYTES,
    PERM128,
    PERM128_BYTES,
    START_NS,
)
from kvfabric.plan.validation.reference import PacketFlow

CARRIED: Final = ("incast128", "perm128")
REFERENCED: Final = ("incastv128", "kv128", "kv128mid", "perm1024n")

PAUSED_PORT_US: Final = {
    "incast128": 710_709,
    "incastv128": 993_637,
    "perm128": 489_697,
    "kv128": 1_229_982,
    "kv128mid": 1_173_888,
}
"""Sums over all ports of the time between pause and resume, in the same runs of uet-htsim."""

_LINK_BPS: Final = 400e9
_PAYLOAD_SHARE: Final = 4096 / 4160  # of the bytes on the wire
_LINK_NS, _SWITCH_NS = 500, 300


@dataclass(frozen=True, eq=False)
class PacketLevelRun:
    """One workload in order of id.

    Attributes:
        channel_names: such as ``SRC3`` (NIC port of host 3), ``LS0->US2``, ``LS1->DST7``.
        paths: channels of each flow, from the source's NIC port to the link into the target.
        start_s: when each flow starts.
        size_bytes: its payload.
        fct_s: from its start to the acknowledgement of its last byte, at packet level.
    """

    channel_names: tuple[str, ...]
    paths: tuple[tuple[int, ...], ...]
    start_s: FloatArray
    size_bytes: IntArray
    fct_s: FloatArray

    @property
    def num_flows(self) -> int:
        """Return the number of flows."""
        return len(self.paths)

    @property
    def capacity_bps(self) -> FloatArray:
        """Return the payload every channel can carry."""
        return np.full(len(self.channel_names), _LINK_BPS * _PAYLOAD_SHARE)

    @property
    def path_start(self) -> IntArray:
        """Return where the path of each flow begins in ``path_channels``; one longer."""
        return np.cumsum([0, *map(len, self.paths)])

    @property
    def path_channels(self) -> IntArray:
        """Return the channels of all paths, one after the other."""
        return np.array([channel for path in self.paths for channel in path])

    @cached_property
    def round_trip_s(self) -> FloatArray:
        """Return how long a bit takes over the wires and switches of each path and back."""
        hops: FloatArray = np.array([len(path) for path in self.paths], np.float64)
        return 2e-9 * (hops * _LINK_NS + (hops - 1) * _SWITCH_NS)


@dataclass(frozen=True, slots=True)
class FctErrors:
    """Relative differences of flow completion times; ``per_flow`` is the mean of absolute ones."""

    mean: float
    p50: float
    p99: float
    per_flow: float


def fct_errors(fct_s: FloatArray, reference_s: FloatArray) -> FctErrors:
    """Return how far completion times are from the reference."""
    return FctErrors(
        mean=float(fct_s.mean() / reference_s.mean()) - 1,
        p50=float(np.median(fct_s) / np.median(reference_s)) - 1,
        p99=float(np.percentile(fct_s, 99) / np.percentile(reference_s, 99)) - 1,
        per_flow=float(np.mean(np.abs(fct_s / reference_s - 1))),
    )


def hosts_per_leaf(name: str) -> int:
    """Return the hosts of a leaf in the fat tree of a workload: half of its radix."""
    return 8 if "1024" in name else HOSTS_PER_LEAF


def run_of(flows: Sequence[PacketFlow], half: int) -> PacketLevelRun:
    """Return a workload ready for an engine.

    Args:
        flows: in order of id.
        half: hosts of a leaf.
    """
    number: dict[str, int] = {}
    names = [_hop_names(flow, half) for flow in flows]
    paths = tuple(tuple(number.setdefault(hop, len(number)) for hop in path) for path in names)
    return PacketLevelRun(
        channel_names=tuple(number),
        paths=paths,
        start_s=np.array([flow.start_ns for flow in flows]) * 1e-9,
        size_bytes=np.array([flow.num_bytes for flow in flows]),
        fct_s=np.array([flow.fct_ns for flow in flows]) * 1e-9,
    )


def carried_flows(name: str) -> list[PacketFlow]:
    """Return the flows of one of the two workloads that the package carries."""
    rows, num_bytes = (
        (INCAST128, INCAST128_BYTES) if name == "incast128" else (PERM128, PERM128_BYTES)
    )
    return [
        PacketFlow(src, dst, _way_up(src, dst, way), START_NS, num_bytes, fct_ns)
        for src, dst, way, fct_ns in rows
    ]


def _way_up(src: int, dst: int, way: int) -> tuple[str, ...]:
    """Return the channels above the source's leaf: none, to an aggregation switch, to a core."""
    half = HOSTS_PER_LEAF
    leaf, pod = src // half, src // half**2
    if way < 0:
        return ()
    aggregation = f"US{pod * half + way % half}"
    if pod == dst // half**2:
        return (f"LS{leaf}->{aggregation}",)
    return (f"LS{leaf}->{aggregation}", f"{aggregation}->CS{way}")


def _hop_names(flow: PacketFlow, half: int) -> list[str]:
    """Return the channels of one flow: up as recorded, down by the target's leaf."""
    leaf, up = flow.dst // half, flow.up
    turn = up[-1].split("->")[1] if up else ""
    down = []
    if len(up) == 2:  # through a core: the aggregation switch keeps its place in the other pod
        place = int(up[1].split("->")[0].removeprefix("US")) % half
        aggregation = f"US{leaf // half * half + place}"
        down = [f"{turn}->{aggregation}", f"{aggregation}->LS{leaf}"]
    elif len(up) == 1:
        down = [f"{turn}->LS{leaf}"]
    return [f"SRC{flow.src}", *up, *down, f"LS{leaf}->DST{flow.dst}"]
