from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from transport_workers import (
    LAYOUT,
    NUM_BLOCKS,
    PATIENT,
    MakeWorker,
    Pool,
    Worker,
    by_layer,
    done,
    failed,
    identity,
    kv_threads,
    wait_until,
    whole,
)

from kvfabric.engine.transport.port import Piece, Side, TransferFailed
from kvfabric.errors import ConfigError


def assert_moved(source: Worker, target: Worker, sent: list[int], put: list[int]) -> None:
    np.testing.assert_array_equal(source.pool.values[:, :, sent], target.pool.values[:, :, put])


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("pieces", [whole, by_layer])
def test_blocks_arrive_where_the_receiver_expects_them(
    make_worker: MakeWorker, pieces: object, is_copied: bool
) -> None:
    assert callable(pieces)
    pools = Pool(1), Pool(2)
    source, target = (
        make_worker(pool=pool, memory=pool.copied() if is_copied else pool.pooled())
        for pool in pools
    )
    before = target.pool.values.copy()
    target.transport.expect(5, pieces(7, 8, 3))
    source.transport.send(5, target.address, pieces(1, 30, 2))
    received, sent = done(target.event_of(5)), done(source.event_of(5))
    assert received.num_bytes == sent.num_bytes == 3 * LAYOUT.block_bytes
    assert (received.side, sent.side) == (Side.DESTINATION, Side.SOURCE)
    assert sent.duration_ns > 0
    assert_moved(source, target, [1, 30, 2], [7, 8, 3])
    others = [block for block in range(NUM_BLOCKS) if block not in {7, 8, 3}]
    np.testing.assert_array_equal(target.pool.values[:, :, others], before[:, :, others])


def test_an_offer_waits_until_its_transfer_is_expected(make_worker: MakeWorker) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    source.transport.send(1, target.address, whole(4))
    wait_until(lambda: target.transport._expected.num_waiting == 1)
    target.transport.expect(1, whole(9))
    done(source.event_of(1))
    assert_moved(source, target, [4], [9])


def test_one_that_waits_does_not_hold_up_others(make_worker: MakeWorker) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    source.transport.send(1, target.address, whole(4))
    target.transport.expect(2, whole(9))
    source.transport.send(2, target.address, whole(5))
    done(source.event_of(2))
    assert_moved(source, target, [5], [9])
    target.transport.expect(1, whole(10))
    done(source.event_of(1))


def test_a_transfer_of_no_bytes_is_acknowledged(make_worker: MakeWorker) -> None:
    source, target = make_worker(), make_worker()
    target.transport.expect(1, [Piece((), 0, 3), Piece((2,), 1, 1)])
    source.transport.send(1, target.address, [])
    assert done(target.event_of(1)).num_bytes == done(source.event_of(1)).num_bytes == 0


def test_empty_pieces_are_left_out_on_either_side(make_worker: MakeWorker) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    target.transport.expect(1, [*whole(3), Piece((), 0, 3)])
    source.transport.send(1, target.address, [Piece((), 0, 3), *whole(4)])
    done(target.event_of(1))
    assert_moved(source, target, [4], [3])


BIG = replace(LAYOUT, block_size=1024)  # a block of 3 x 128 KiB: a transfer takes several frames


def test_transfers_of_one_peer_take_turns(make_worker: MakeWorker) -> None:
    """In turns the short one ends first, one after the other never.

    It is tried several times: a thread that is held up too long lets the long one end meanwhile.
    """
    who = identity(layout=BIG)
    source, target = (make_worker(pool=Pool(seed, BIG), who=who) for seed in (1, 2))
    long, short = tuple(range(24)), (24,)

    def is_short_one_first(long_id: int, short_id: int) -> bool:
        source.transport.send(long_id, target.address, whole(*long))
        source.transport.send(short_id, target.address, whole(*short))
        wait_until(lambda: target.transport._expected.num_waiting == 2)
        target.transport.expect(long_id, whole(*long))
        target.transport.expect(short_id, whole(*short))
        for transfer_id in (long_id, short_id):
            done(source.event_of(transfer_id))
            done(target.event_of(transfer_id))
        order = [event.transfer_id for event in target.seen]  # type: ignore[union-attr]
        return order.index(short_id) < order.index(long_id)

    assert any(is_short_one_first(2 * i, 2 * i + 1) for i in range(50)), "it waits for 9 MB"
    assert_moved(source, target, [*long, *short], [*long, *short])


def test_many_at_once_both_ways(make_worker: MakeWorker) -> None:
    workers = [make_worker(seed=seed) for seed in range(3)]
    before = [worker.pool.values.copy() for worker in workers]
    moves = list(
        enumerate((src, dst, k) for k in range(4) for src, dst in permutations(range(3), 2))
    )
    for transfer_id, (src, dst, k) in moves:  # block k goes to a place of its own
        workers[src].transport.send(transfer_id, workers[dst].address, whole(k))
    for transfer_id, (src, dst, k) in reversed(moves):
        workers[dst].transport.expect(transfer_id, whole(8 + 4 * src + k))
    for transfer_id, (src, dst, k) in moves:
        done(workers[src].event_of(transfer_id))
        done(workers[dst].event_of(transfer_id))
        arrived = workers[dst].pool.values[:, :, 8 + 4 * src + k]
        np.testing.assert_array_equal(arrived, before[src][:, :, k])
    assert len(kv_threads()) == 3 + 2 * 6, "one per worker, one per end of a connection"


def test_pieces_that_do_not_fit_fail_that_transfer_alone(make_worker: MakeWorker) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    target.transport.expect(1, whole(1, 2))
    source.transport.send(1, target.address, whole(1, 2, 3))
    reason = "offered 1 pieces of 4608 bytes, expected 1 of 3072"
    assert failed(target.event_of(1)) == reason
    assert failed(source.event_of(1)) == f"the receiver refused: {reason}"
    # as many bytes and pieces, of other layers
    target.transport.expect(2, [Piece((1,), 0, 1), Piece((1,), 1, 3)])
    source.transport.send(2, target.address, [Piece((1,), 0, 2), Piece((1,), 2, 3)])
    assert "expected (0, 0, 1, 1, 512, 0)" in failed(target.event_of(2))
    assert "the receiver refused" in failed(source.event_of(2))
    source.transport.send(3, target.address, whole(4))
    target.transport.expect(3, whole(5))
    done(source.event_of(3))


def test_one_id_cannot_be_used_twice_at_once(make_worker: MakeWorker) -> None:
    source, target = make_worker(), make_worker()
    target.transport.expect(1, whole(1))
    with pytest.raises(ValueError, match="transfer 1 is expected already"):
        target.transport.expect(1, whole(2))
    source.transport.send(2, target.address, whole(1))
    with pytest.raises(ValueError, match="transfer 2 is being sent already"):
        source.transport.send(2, target.address, whole(1))


def test_more_pieces_than_the_protocol_counts_are_told_at_once(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with pytest.raises(ValueError, match="a transfer of 65537 pieces"):
        worker.transport.expect(1, whole(1) * (2**16 + 1))


def test_a_bad_address_is_told_at_once(make_worker: MakeWorker) -> None:
    with pytest.raises(ConfigError, match="Write unix:/path"):
        make_worker().transport.send(1, "somewhere", whole(1))


def test_an_idle_connection_is_closed_and_opened_again(make_worker: MakeWorker) -> None:
    # the sender closes; a receiver as quick could close before a slow sender's first offer
    source, target = make_worker(deadlines=replace(PATIENT, idle_ns=50_000_000)), make_worker()
    for transfer_id in (1, 2):
        target.transport.expect(transfer_id, whole(1))
        source.transport.send(transfer_id, target.address, whole(2))
        done(source.event_of(transfer_id))
        wait_until(lambda: len(kv_threads()) == 2)  # the two that accept


def test_a_closed_transport_takes_nothing_and_fails_what_is_under_way(
    make_worker: MakeWorker,
) -> None:
    source, target = make_worker(), make_worker()
    target.transport.expect(1, whole(1))
    source.transport.send(2, target.address, whole(1))
    target.transport.close()
    assert failed(target.event_of(1)) == "this worker closes its connections"
    assert failed(source.event_of(2))
    source.transport.close()
    with pytest.raises(ValueError, match="closed"):
        source.transport.send(3, target.address, whole(1))
    with pytest.raises(ValueError, match="closed"):
        source.transport.expect(3, whole(1))
    assert not [e for e in source.drain() if isinstance(e, TransferFailed) and e.transfer_id == 3]
