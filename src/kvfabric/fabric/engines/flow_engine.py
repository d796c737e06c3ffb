"""What every flow engine offers: flows start on given paths and end at instants it works out."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from kvfabric.fabric.graph import FloatArray

# What makes a flow a victim; see ``BackPressure.num_victims``.
VICTIM_SHARE = 0.05  # of its time
FULL_SHARE = 0.98  # of a channel, or of a fair share of a NIC: from there on it is all in use


class FlowEngine(Protocol):
    """Shares channels among flows; time only advances when told to.

    Flow ids count from 0 in the order of start and are never used again. Instants never go back.
    """

    @property
    def num_active(self) -> int:
        """Return the number of flows under way at the last instant told."""
        ...

    def start_flows(
        self, now_ns: int, paths: Sequence[Sequence[int]], sizes_bytes: Sequence[int]
    ) -> range:
        """Start flows at one instant; return their ids.

        Args:
            now_ns: not before the last instant told. Flows that end by then are kept for the next
                ``advance``.
            paths: channels of each flow, from the source's NIC port to the destination's, none
                twice.
            sizes_bytes: at least 1 each.
        """
        ...

    def cancel_flows(self, now_ns: int, flow_ids: Iterable[int]) -> None:
        """Drop flows; those that have ended already are left alone."""
        ...

    def next_completion_ns(self) -> int | None:
        """Return when the next flow ends if nothing else happens, or None when idle."""
        ...

    def advance(self, now_ns: int) -> list[int]:
        """Return the flows that ended at or before ``now_ns``, by instant, then id."""
        ...

    def carried_bytes(self) -> FloatArray:
        """Return the bytes each channel has carried up to the last instant told."""
        ...

    def check_invariants(self) -> None:
        """Assert the engine's invariants."""
        ...


class BackPressure(Protocol):
    """What engines with priority flow control report besides completions, since the start."""

    def paused_ns(self) -> FloatArray:
        """Return, per channel, how long its sender was held back by a pause, in nanoseconds."""
        ...

    def peak_queue_bytes(self) -> FloatArray:
        """Return, per channel, the longest queue that waited for it."""
        ...

    def num_victims(self) -> int:
        """Return the ended flows that were slowed though none of their own links was full.

        A flow is held back while it gets less than ``FULL_SHARE`` of its fair share of the NIC: the
        rate of the port over the flows that send from it. A channel is full while its load, what it
        really carries, is at least ``FULL_SHARE`` of its capacity. A victim was held back for more
        than ``VICTIM_SHARE`` of its time, and held back with a full channel on its own path, the
        NIC port included, for less than that. Cancelled flows are not counted.
        """
        ...
