from kvfabric.engine.transport.connection import Heard
from kvfabric.engine.transport.copy_turns import MAX_QUEUED, CopyTurns
from kvfabric.engine.transport.frames import Frame, Kind


def blocks(transfer_id: int, offset: int = 0) -> Heard:
    return Heard(Frame(Kind.BLOCKS, transfer_id, offset=offset), block_ids=(1,))


def test_transfers_take_turns_and_keep_their_own_order() -> None:
    turns = CopyTurns()
    for heard in (blocks(1, 0), blocks(1, 1), blocks(1, 2), blocks(2, 0), blocks(2, 1)):
        turns.add(heard)
    taken = []
    while turns:
        frame = turns.take().frame
        taken.append((frame.transfer_id, frame.offset))
    assert taken == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]


def test_an_end_needs_no_turn_once_all_is_copied() -> None:
    turns, end = CopyTurns(), Heard(Frame(Kind.END, 1))
    for heard in (blocks(1, 0), blocks(1, 1), end, blocks(2)):
        turns.add(heard)
    assert turns.take().frame.offset == 0
    assert turns.take_end(1) is None
    assert turns.take().frame.transfer_id == 2
    assert turns.take().frame.offset == 1
    assert turns.take_end(1) is end
    assert turns.take_end(1) is None
    assert not turns


def test_what_is_dropped_is_not_taken() -> None:
    turns = CopyTurns()
    for heard in (blocks(1), blocks(2), blocks(1, 1)):
        turns.add(heard)
    turns.drop(1)
    turns.drop(7)
    assert 1 not in turns
    assert 2 in turns
    assert turns.take().frame.transfer_id == 2
    assert not turns


def test_it_says_when_it_is_full() -> None:
    turns = CopyTurns()
    seen = []
    for _ in range(MAX_QUEUED):
        seen.append(turns.is_full)
        turns.add(blocks(1))
    assert not any(seen)
    seen = [turns.is_full]
    turns.take()
    seen.append(turns.is_full)
    turns.add(blocks(1))
    turns.drop(1)
    assert [*seen, turns.is_full] == [True, False, False]
