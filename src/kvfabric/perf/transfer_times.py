"""What moving KV cache between two workers takes on one machine, measured as a whole.

A transfer takes a constant and its bytes: ``setup + bytes / rate``. Transfers under way at the same
time are taken not to slow each other down; that is assumed, not measured.
"""

from dataclasses import dataclass

from kvfabric.protocol.provenance import Source
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTimes:
    """What was measured.

    Attributes:
        setup_ns: from the start of a transfer until its bytes flow, and from the last of them until
            the control knows.
        bytes_per_s: of the bytes.
        source: which machine and way.
    """

    setup_ns: int
    bytes_per_s: int
    source: Source

    def transfer_ns(self, num_bytes: int) -> int:
        """Return the duration of one transfer."""
        return self.setup_ns + num_bytes * NS_PER_S // self.bytes_per_s


class MeasuredTransfers:
    """A ``Network`` of such transfers; see ``protocol.ports``."""

    def __init__(self, times: TransferTimes) -> None:
        """Start with nothing under way."""
        self._times = times
        self._end_ns: dict[int, int] = {}

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        self._end_ns[transfer.transfer_id] = now_ns + self._times.transfer_ns(transfer.num_bytes)

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop what is left of a transfer."""
        del now_ns
        del self._end_ns[transfer_id]

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion, or None when idle."""
        return min(self._end_ns.values(), default=None)

    def advance(self, now_ns: int) -> list[int]:
        """Return the transfers completed at or before ``now_ns``, in order of completion."""
        done = sorted((end_ns, i) for i, end_ns in self._end_ns.items() if end_ns <= now_ns)
        for _, transfer_id in done:
            del self._end_ns[transfer_id]
        return [transfer_id for _, transfer_id in done]
