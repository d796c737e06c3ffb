"""Networks without a fabric: one that moves nothing, one whose transfers were measured."""

from kvfabric.fabric.networks.network import LinkLoad
from kvfabric.perf.transfer_times import MeasuredTransfers, TransferTimes
from kvfabric.protocol.transfer import TransferPlan


class NoNetwork:
    """The network of a fleet that moves nothing."""

    num_flows = 0

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Refuse: nothing can be moved."""
        raise AssertionError((transfer, now_ns))

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Refuse: nothing is moving."""
        raise AssertionError((transfer_id, now_ns))

    def next_completion_ns(self) -> int | None:
        """Return None: nothing moves."""
        return None

    def advance(self, now_ns: int) -> tuple[int, ...]:
        """Return no transfers."""
        del now_ns
        return ()

    def busiest_links(self, window_ns: int, count: int = 1) -> list[LinkLoad]:
        """Return no links."""
        del window_ns, count
        return []


class MeasuredNetwork(MeasuredTransfers):
    """Transfers that take what was measured of them as a whole; it knows no links.

    Attributes:
        num_flows: transfers that were begun.
    """

    def __init__(self, times: TransferTimes) -> None:
        """Start with nothing under way."""
        super().__init__(times)
        self.num_flows = 0

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer."""
        super().start(transfer, now_ns)
        self.num_flows += 1

    def busiest_links(self, window_ns: int, count: int = 1) -> list[LinkLoad]:
        """Return no links."""
        del window_ns, count
        return []
