import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_workers import LAYOUT, NUM_BLOCKS, Pool

from kvfabric.engine.transport.port import BlockMemory, Piece


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    ids = st.lists(st.integers(0, NUM_BLOCKS - 1), unique=True, max_size=NUM_BLOCKS)
    first = draw(st.integers(0, LAYOUT.num_layers))
    return Piece(tuple(draw(ids)), first, draw(st.integers(first, LAYOUT.num_layers)))


@given(pieces())
def test_both_kinds_of_memory_send_the_same_bytes(piece: Piece) -> None:
    pool = Pool(1)
    pooled, copied = pool.pooled(), pool.copied()
    sent = b"".join(pooled.outgoing(piece))
    assert sent == b"".join(copied.outgoing(piece))
    assert len(sent) == pooled.num_bytes(piece) == copied.num_bytes(piece)


@given(pieces(), st.booleans(), st.randoms(use_true_random=False))
def test_blocks_arrive_in_their_places_and_nowhere_else(
    piece: Piece,
    is_copied: bool,
    random: "np.random.Generator",
) -> None:
    source, target = Pool(1), Pool(2)
    places = list(range(NUM_BLOCKS))
    random.shuffle(places)
    put = piece._replace(block_ids=tuple(places[: len(piece.block_ids)]))
    wanted = target.values.copy()
    for block, place in zip(piece.block_ids, put.block_ids, strict=True):
        layers = slice(piece.first_layer, piece.end_layer)
        wanted[layers, :, place] = source.values[layers, :, block]
    receive(target.copied() if is_copied else target.pooled(), put, source.pooled(), piece)
    np.testing.assert_array_equal(target.values, wanted)


def receive(memory: BlockMemory, put: Piece, source: BlockMemory, piece: Piece) -> None:
    views = memory.incoming(put)
    data = memoryview(b"".join(source.outgoing(piece)))
    for view in views:
        view[:], data = data[: len(view)], data[len(view) :]
    assert not data
    memory.received(put, views)


def test_neighbouring_blocks_are_one_segment() -> None:
    views = Pool(0).pooled().outgoing(Piece((4, 5, 6, 9, 8), 1, 2))
    size = LAYOUT.block_bytes_per_layer // 2
    assert [len(view) for view in views] == [3 * size, size, size] * 2  # K, then V


def test_a_receive_buffer_is_used_again_at_its_full_size() -> None:
    memory = Pool(0).copied()
    large, small = Piece((1, 2, 3), 0, 3), Piece((1,), 0, 1)
    first = memory.incoming(large)
    memory.received(large, first)
    second = memory.incoming(small)
    memory.received(small, second)
    third = memory.incoming(large)
    assert {view.obj is first[0].obj for view in (*second, *third)} == {True}


def test_the_wire_order_is_that_of_the_kv_tensors() -> None:
    torch = pytest.importorskip("torch")
    kv_tensors = pytest.importorskip("kvfabric.engine.kv_tensors")
    tensors = kv_tensors.PlainKvTensors(LAYOUT, NUM_BLOCKS, torch.device("cpu"))
    pool = Pool(3)
    numbers = pool.values.view(np.float32)
    tensors.pool.copy_(torch.from_numpy(numbers).view(tensors.pool.shape))
    piece = Piece((7, 3, 4), 1, 3)
    assert bytes(tensors.read_blocks(*piece)) == b"".join(pool.pooled().outgoing(piece))
