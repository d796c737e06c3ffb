"""A network in which only the NICs of a hand-off bound it: what no fabric can beat by much."""

import heapq
from collections import Counter
from collections.abc import Sequence

from kvfabric.perf.handoff import payload_rate_bps
from kvfabric.plan.worker_layout import SERVER_GPUS
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.units import NS_PER_S, ceil_div


class IdealNetwork:
    """Implements the ``Network`` port: every transfer has all of its NICs to itself.

    A transfer takes as long as the most loaded of its own NICs needs at line rate, as if nothing
    else moved; parts within a server take no time, as in ``FabricNetwork``.
    """

    def __init__(self, nic_rate_bps: int) -> None:
        """Make an idle network of NICs of this line rate."""
        self._payload_bps = payload_rate_bps(nic_rate_bps)
        self._ends: list[tuple[int, int]] = []  # (instant, transfer id)

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        heapq.heappush(self._ends, (now_ns + self._duration_ns(transfer), transfer.transfer_id))

    def _duration_ns(self, transfer: TransferPlan) -> int:
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for src, dst, num_bytes in transfer.parts:
            if src // SERVER_GPUS != dst // SERVER_GPUS:
                sent[src] += num_bytes
                received[dst] += num_bytes
        most = max((*sent.values(), *received.values()), default=0)
        return ceil_div(most * 8 * NS_PER_S, self._payload_bps)

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop a transfer; one that has ended is left alone."""
        del now_ns
        self._ends = [end for end in self._ends if end[1] != transfer_id]
        heapq.heapify(self._ends)

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion, or None when nothing moves."""
        return self._ends[0][0] if self._ends else None

    def advance(self, now_ns: int) -> Sequence[int]:
        """Return the transfers done by ``now_ns``, in order of completion."""
        done: list[int] = []
        while self._ends and self._ends[0][0] <= now_ns:
            done.append(heapq.heappop(self._ends)[1])
        return done
