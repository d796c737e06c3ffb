"""Reads the packet-level reference runs: flows, the paths they took, and when each one ended.

Source: uet-htsim (RoCE with PFC alone, no congestion control), three-tier fat trees of 400 Gbit/s
links, frames of 4,096 + 64 bytes, XOFF/XON at 60/40 frames per ingress port, ECMP per flow. The
folder ``fabric/packet_level`` of the reference data holds, per workload, ``NAME.fct.csv`` with the
upward queues that ECMP chose. The way down follows from the core switch and the target's leaf.
"""

import csv
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from reference import reference_path

from kvfabric.fabric.graph import FloatArray, IntArray

WORKLOADS = ("incast128", "incastv128", "perm128", "kv128", "kv128mid", "perm1024n")

LINK_BPS = 400e9
PAYLOAD_SHARE = 4096 / 4160  # of the bytes on the wire
LINK_NS, SWITCH_NS = 500, 300


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
        return len(self.paths)

    @property
    def capacity_bps(self) -> FloatArray:
        """Return the payload every channel can carry."""
        return np.full(len(self.channel_names), LINK_BPS * PAYLOAD_SHARE)

    @property
    def path_start(self) -> IntArray:
        return np.cumsum([0, *map(len, self.paths)])

    @property
    def path_channels(self) -> IntArray:
        return np.array([channel for path in self.paths for channel in path])

    @cached_property
    def round_trip_s(self) -> FloatArray:
        """Return how long a bit takes over the wires and switches of each path and back."""
        hops: FloatArray = np.array([len(path) for path in self.paths], np.float64)
        return 2e-9 * (hops * LINK_NS + (hops - 1) * SWITCH_NS)


@dataclass(frozen=True, slots=True)
class FctErrors:
    """Relative differences of flow completion times; ``per_flow`` is the mean of absolute ones."""

    mean: float
    p50: float
    p99: float
    per_flow: float


def read_run(name: str) -> PacketLevelRun:
    """Return a workload of the reference data, or skip the test where there is none."""
    folder = reference_path("fabric/packet_level")
    topology = "ft1024.topo" if "1024" in name else "ft128.topo"
    half = _hosts_per_leaf((folder / topology).read_text())
    with (folder / f"{name}.fct.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    number: dict[str, int] = {}
    names = [_hop_names(row, half) for row in rows]
    paths = tuple(tuple(number.setdefault(hop, len(number)) for hop in path) for path in names)
    return PacketLevelRun(
        channel_names=tuple(number),
        paths=paths,
        start_s=np.array([float(row["start_us"]) for row in rows]) * 1e-6,
        size_bytes=np.array([int(row["bytes"]) for row in rows]),
        fct_s=np.array([float(row["fct_us"]) for row in rows]) * 1e-6,
    )


def fct_errors(fct_s: FloatArray, reference_s: FloatArray) -> FctErrors:
    """Return how far completion times are from the reference."""
    return FctErrors(
        mean=float(fct_s.mean() / reference_s.mean()) - 1,
        p50=float(np.median(fct_s) / np.median(reference_s)) - 1,
        p99=float(np.percentile(fct_s, 99) / np.percentile(reference_s, 99)) - 1,
        per_flow=float(np.mean(np.abs(fct_s / reference_s - 1))),
    )


def _hosts_per_leaf(topology: str) -> int:
    lines = topology.split("Tier 0", 1)[1].splitlines()
    (radix,) = (line.split()[1] for line in lines[:4] if line.startswith("Radix_Down"))
    return int(radix)


def _hop_names(row: dict[str, str], half: int) -> list[str]:
    """Return the channels of one flow: up as recorded, down by the target's leaf."""
    leaf = int(row["dst"]) // half
    up = [queue.split("(")[0] for queue in row["ecmp_queues"].split("|") if queue]
    turn = up[-1].split("->")[1] if up else ""
    down = []
    if len(up) == 2:  # through a core: the aggregation switch keeps its place in the other pod
        place = int(up[1].split("->")[0].removeprefix("US")) % half
        aggregation = f"US{leaf // half * half + place}"
        down = [f"{turn}->{aggregation}", f"{aggregation}->LS{leaf}"]
    elif len(up) == 1:
        down = [f"{turn}->LS{leaf}"]
    return [f"SRC{row['src']}", *up, *down, f"LS{leaf}->DST{row['dst']}"]
