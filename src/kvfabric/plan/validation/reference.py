"""What the comparisons ask of the folder of reference data; ``app`` reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvfabric.fabric.graph import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class TimedFlows:
    """Flows with fixed paths, and when an independent simulator ends each.

    Attributes:
        capacity_bps: of every channel.
        path_start: where the path of flow i begins; one longer than the list.
        path_channels: flow i crosses ``path_channels[path_start[i]:path_start[i + 1]]``.
        start_s: when each flow starts.
        size_bytes: of each flow.
        finish_s: when the simulator ends it.
    """

    capacity_bps: FloatArray
    path_start: IntArray
    path_channels: IntArray
    start_s: FloatArray
    size_bytes: IntArray
    finish_s: FloatArray


@dataclass(frozen=True, slots=True)
class PacketFlow:
    """One flow of a packet-level run: its way up as recorded, and when it ended.

    Attributes:
        src: host.
        dst: host.
        up: channels above the source's leaf, such as ``("LS0->US1", "US1->CS5")``.
        start_ns: when it starts.
        num_bytes: its payload.
        fct_ns: from its start to the acknowledgement of its last byte.
    """

    src: int
    dst: int
    up: tuple[str, ...]
    start_ns: float
    num_bytes: int
    fct_ns: float


@dataclass(frozen=True, slots=True)
class LatencyFigure:
    """One latency of a recorded run of a real engine, and the simulated one."""

    name: str
    measured_ns: float
    simulated_ns: float


class ReferenceData(Protocol):
    """The folder of reference data, as far as comparisons read it."""

    def missing(self, needs: Sequence[str]) -> list[str]:
        """Return those of the paths that the folder lacks."""

    def timed_flows(self) -> TimedFlows:
        """Return the workload of ``fabric/maxmin``."""

    def packet_flows(self, name: str) -> list[PacketFlow]:
        """Return a workload of ``fabric/packet_level``."""

    def conversation_blocks(self) -> list[tuple[int, ...]]:
        """Return the block ids of every request of the Mooncake conversation trace."""

    def vllm_run(self, name: str, window: tuple[int, int] | None) -> list[LatencyFigure]:
        """Return the latencies of a run of ``serving``, simulated, of all or part of its requests.

        Args:
            name: ``rtx-4090`` or ``rtx-pro-6000``.
            window: first and last request; None for all.
        """
