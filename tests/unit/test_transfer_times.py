"""Measured transfer times, as a number and as a network."""

from kvfabric.perf.transfer_times import MeasuredTransfers, TransferTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.transfer import RankTransfer, TransferPlan

TIMES = TransferTimes(
    setup_ns=100, bytes_per_s=2_000_000_000, source=Source(SourceKind.MEASURED, "made up")
)


def plan(transfer_id: int, num_bytes: int) -> TransferPlan:
    return TransferPlan(transfer_id, (RankTransfer(0, 1, num_bytes),))


def test_a_constant_and_the_bytes() -> None:
    assert TIMES.transfer_ns(0) == 100
    assert TIMES.transfer_ns(1_000) == 600


def test_transfers_end_in_their_order_and_do_not_slow_each_other_down() -> None:
    network = MeasuredTransfers(TIMES)
    assert network.next_completion_ns() is None
    network.start(plan(1, 2_000), 0)
    network.start(plan(2, 200), 50)
    network.start(plan(3, 400), 50)
    assert network.next_completion_ns() == 250
    network.cancel(3, 60)
    assert network.advance(249) == []
    assert network.advance(2_000) == [2, 1]
    assert network.next_completion_ns() is None
