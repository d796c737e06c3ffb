"""Pools that other processes map: the kernel is the oracle of what they may do with them."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_workers import LAYOUT, mapped_pools, open_fds

from kvfabric.engine.transport.block_memory import PooledBlocks
from kvfabric.engine.transport.pool_shape import PoolPart, PoolShape, pool_shape_of
from kvfabric.engine.transport.port import Piece
from kvfabric.engine.transport.shared_pool import (
    NUM_STAMPS,
    MappedPool,
    PoolRefusedError,
    SharedPool,
    Stamp,
    make_shared_pool,
)

EIGHT = replace(LAYOUT, kv_dtype="int8", num_kv_heads=3, head_dim=5)  # parts that need padding
SHAPES = {
    "values": pool_shape_of(LAYOUT, 12),
    "values and scales": pool_shape_of(EIGHT, 12),
    "one plane": PoolShape(num_layers=3, num_blocks=12, parts=(PoolPart(1, 24),)),
}


def filled(shape: PoolShape, seed: int) -> SharedPool:
    pool = make_shared_pool(shape)
    assert pool is not None
    rng = np.random.default_rng(seed)
    for array in pool.arrays:
        array[:] = rng.integers(0, 256, array.shape, np.uint8)
    return pool


@pytest.fixture
def pool() -> Iterator[SharedPool]:
    made = filled(SHAPES["values"], 1)
    yield made
    made.close()


def test_sizes_of_parts() -> None:
    """By hand: int8 values 3 layers x 2 x 12 blocks x (4 tokens x 3 heads x 5), fp32 scales."""
    shape = SHAPES["values and scales"]
    assert shape.parts == (PoolPart(2, 4 * 3 * 5), PoolPart(2, 4 * 3 * 4))
    values, scales = 3 * 2 * 12 * 60, 3 * 2 * 12 * 48
    assert shape.num_bytes == -(-values // 64) * 64 + scales
    assert shape.block_bytes_per_layer == EIGHT.block_bytes_per_layer == 216
    assert [len(view) for view in shape.views(memoryview(bytearray(shape.num_bytes)))] == [
        values,
        scales,
    ]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@given(st.data())
def test_copied_blocks_are_those_that_sockets_would_bring(
    shape: PoolShape, data: st.DataObject
) -> None:
    """Oracle: the bytes in wire order. The peer's pool is larger than the own one."""
    theirs, own = filled(replace(shape, num_blocks=20), 1), filled(shape, 2)
    ids = data.draw(st.lists(st.integers(0, 11), unique=True, max_size=12))
    sent = data.draw(st.permutations(range(20)))[: len(ids)]
    first = data.draw(st.integers(0, shape.num_layers))
    end = data.draw(st.integers(first, shape.num_layers))
    before = [array.copy() for array in own.arrays]
    mapped = MappedPool(os.dup(theirs.fd), own, 20)
    mapped.copy(ids, sent, slice(first, end))
    source = PooledBlocks(theirs.memory, theirs.shape).outgoing(Piece(tuple(sent), first, end))
    target = PooledBlocks(own.memory, shape).outgoing(Piece(tuple(ids), first, end))
    assert b"".join(source) == b"".join(target)
    for array, old in zip(own.arrays, before, strict=True):
        old[first:end, :, ids] = array[first:end, :, ids]
        np.testing.assert_array_equal(array, old)
    mapped.close()
    del source, target, array
    for one in (theirs, own):
        one.close()


def test_peers_cannot_write_and_nobody_can_cut_it(pool: SharedPool) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(pool.fd, 4096)
    with pytest.raises(PermissionError):
        os.write(pool.fd, b"x")
    for size in (0, 4096, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(pool.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    again = os.open(f"/proc/self/fd/{pool.fd}", os.O_RDWR)  # a way round the passed descriptor
    with pytest.raises(PermissionError):
        mmap.mmap(again, 4096)
    os.close(again)
    pool.memory[0] = 7  # the owner can


def test_what_is_not_sealed_against_cutting_is_refused(pool: SharedPool) -> None:
    """Reading a mapping that was cut ends in SIGBUS; that is why."""
    size = os.fstat(pool.fd).st_size
    for seals in (0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE):
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(PoolRefusedError, match="not sealed"):
            MappedPool(fd, pool, 12)


def test_other_files_and_sizes_are_refused(pool: SharedPool) -> None:
    before = open_fds(), mapped_pools()
    for other in (os.open("/dev/zero", os.O_RDONLY), os.open(__file__, os.O_RDONLY)):
        with pytest.raises(PoolRefusedError, match="no memory that can be sealed"):
            MappedPool(other, pool, 12)
    for num_blocks in (11, 13, 1 << 32):
        with pytest.raises(PoolRefusedError, match=rf"has {os.fstat(pool.fd).st_size} bytes, not"):
            MappedPool(os.dup(pool.fd), pool, num_blocks)
    assert (open_fds(), mapped_pools()) == before


def test_pages_are_found_ahead_while_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the blocks of 512 bytes that the kernel counts for the file."""
    pool = make_shared_pool(pool_shape_of(LAYOUT, 1024))
    assert pool is not None
    start, sysconf = os.fstat(pool.fd).st_blocks, os.sysconf
    with monkeypatch.context() as patched:
        patched.setattr(os, "sysconf", lambda name: 0 if "AVPHYS" in name else sysconf(name))
        pool.touch()
    assert os.fstat(pool.fd).st_blocks == start
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 60 if "AVPHYS" in name else sysconf(name))
    pool.touch()
    assert os.fstat(pool.fd).st_blocks * 512 >= pool.shape.num_bytes
    assert not pool.arrays[0].any()
    pool.close()
    pool.touch()  # nothing is left to touch


def test_a_stamp_is_there_until_it_is_wiped(pool: SharedPool) -> None:
    mapped = MappedPool(os.dup(pool.fd), pool, 12)
    first, second = pool.stamp(), pool.stamp()
    assert first is not None
    assert second is not None
    assert mapped.has(first)
    pool.wipe(first)
    assert not mapped.has(first)
    assert mapped.has(second)
    for wrong in (Stamp(-1, 1), Stamp(NUM_STAMPS, 1), Stamp(5, 0), Stamp(second.slot, 99)):
        assert not mapped.has(wrong)
    mapped.close()


def test_stamps_are_new_each_time_and_run_out(pool: SharedPool) -> None:
    stamps = [pool.stamp() for _ in range(NUM_STAMPS)]
    assert None not in stamps
    assert pool.stamp() is None
    for stamp in stamps:
        assert stamp is not None
        pool.wipe(stamp)
    again = pool.stamp()
    assert again is not None
    assert again not in stamps
    assert pool.num_stamped == 1


def test_a_mapping_outlives_its_owner_and_goes_when_it_is_closed() -> None:
    before = open_fds(), mapped_pools()
    theirs, own = filled(SHAPES["values"], 1), filled(SHAPES["values"], 2)
    mapped = MappedPool(os.dup(theirs.fd), own, 12)
    sent = theirs.arrays[0][:, :, 3].copy()
    theirs.close()
    del theirs
    mapped.copy([4], [3], slice(0, 3))
    np.testing.assert_array_equal(own.arrays[0][:, :, 4], sent)
    mapped.close()
    own.close()
    del own
    assert (open_fds(), mapped_pools()) == before


def test_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES["values"]
    with monkeypatch.context() as patched:
        patched.delattr(os, "memfd_create")
        assert make_shared_pool(shape) is None
    before = open_fds()
    monkeypatch.setattr("kvfabric.engine.transport.shared_pool._F_SEAL_FUTURE_WRITE", 1 << 30)
    assert make_shared_pool(shape) is None, "a kernel that lacks a seal"
    assert open_fds() == before


def test_more_than_the_machine_has_is_told_at_once() -> None:
    with pytest.raises(MemoryError, match=r"a KV cache of .* bytes; this machine has"):
        make_shared_pool(pool_shape_of(LAYOUT, 1 << 40))
