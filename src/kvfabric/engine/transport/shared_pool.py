"""A KV pool in memory that worker processes of one host map: the owner writes, peers only read.

It lies in a memfd, which has no name and is gone with its last process. The owner maps it, then
seals it: nobody can map it writable any more, and nobody can shorten it, so that reading it never
ends in SIGBUS. Behind the pool lies a table of stamps, one for each transfer that peers read: the
owner wipes it when it gives the blocks up. Who has copied blocks reads the stamp last: is it still
there, the copy is whole.
"""

import fcntl
import mmap
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from kvfabric.engine.transport.block_runs import copy_blocks
from kvfabric.engine.transport.pool_shape import Bytes, PoolShape

NUM_STAMPS: Final = 4096  # transfers that peers read at once
MAX_BLOCKS: Final = 1 << 32
_STAMP_BYTES = 8
_TOUCH_BYTES, _TOUCH_PAUSE_S = 1 << 20, 0.002
_F_SEAL_FUTURE_WRITE = 0x10  # of Linux 5.1; not in Python's fcntl


class PoolRefusedError(Exception):
    """What a peer passed is no pool that can be read safely; the text says why."""


class Stamp(NamedTuple):
    """What says that the blocks of a transfer are still there: a number that is used once."""

    slot: int
    serial: int


class SharedPool:
    """The owner's side of a pool; ``make_shared_pool`` makes one.

    Attributes:
        shape: of the pool.
        memory: its bytes, writable, zeros at first.
        fd: what peers map; they can only read it.
    """

    def __init__(self, fd: int, mapping: mmap.mmap, shape: PoolShape) -> None:
        """Take over a memfd and the only writable mapping of it."""
        self.fd, self.shape = fd, shape
        self.memory = memoryview(mapping)
        self.arrays: Sequence[Bytes] = shape.arrays(self.memory)
        self._stamps = np.frombuffer(mapping, np.uint64, NUM_STAMPS, shape.num_bytes)
        self._slots = deque(range(NUM_STAMPS))
        self._serials = count(1)

    @property
    def num_stamped(self) -> int:
        """Return how many stamps are out."""
        return NUM_STAMPS - len(self._slots)

    def stamp(self) -> Stamp | None:
        """Return a new stamp, or None while all slots are used."""
        try:
            slot = self._slots.popleft()
        except IndexError:
            return None
        stamp = Stamp(slot, next(self._serials))
        self._stamps[slot] = stamp.serial
        return stamp

    def wipe(self, stamp: Stamp) -> None:
        """Let every later look at a stamp fail; once for each."""
        self._stamps[stamp.slot] = 0
        self._slots.append(stamp.slot)

    def touch(self) -> None:
        """Let the system find all pages, bit by bit; for a thread of its own.

        Fresh pages cost a transfer more than copying them. It stops where less than a quarter of
        the machine's memory would be left, and when the pool is closed.
        """
        least = os.sysconf("SC_PHYS_PAGES") // 4
        for start in range(0, self.shape.num_bytes, _TOUCH_BYTES):
            part = self.memory[start : start + _TOUCH_BYTES]
            if not part or os.sysconf("SC_AVPHYS_PAGES") < least:
                return
            np.frombuffer(part, np.uint8)[:: mmap.PAGESIZE].max()  # reads; others write meanwhile
            time.sleep(_TOUCH_PAUSE_S)

    def close(self) -> None:
        """Pass it to nobody any more; the mapping ends with the last array in it."""
        os.close(self.fd)
        self.memory, self.arrays = memoryview(b""), ()
        self._stamps = np.zeros(NUM_STAMPS, np.uint64)


class MappedPool:
    """A peer's pool, mapped read-only.

    Attributes:
        num_blocks: of the peer.
    """

    def __init__(self, fd: int, own: SharedPool, num_blocks: int) -> None:
        """Map and close what a peer passed; its pool differs from the own one in blocks only.

        Raises:
            PoolRefusedError: it is not sealed, or has another size.
        """
        self.num_blocks, self._own = num_blocks, own.arrays
        shape = replace(own.shape, num_blocks=num_blocks)
        try:
            _check(fd, _file_bytes(shape))
            self._mapping = mmap.mmap(fd, _file_bytes(shape), prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._arrays: Sequence[Bytes] = shape.arrays(memoryview(self._mapping))
        self._stamps = np.frombuffer(self._mapping, np.uint64, NUM_STAMPS, shape.num_bytes)

    def copy(self, own_ids: Sequence[int], block_ids: Sequence[int], layers: slice) -> None:
        """Copy the peer's blocks to own ones; the ids are below ``num_blocks``."""
        copy_blocks(self._own, own_ids, self._arrays, block_ids, layers)

    def has(self, stamp: Stamp) -> bool:
        """Return whether a stamp is still there: then all that was copied before is whole.

        A lock is released and taken between copying and looking, and on the other side between
        wiping and writing, which keeps the order on every processor.
        """
        is_one = 0 <= stamp.slot < NUM_STAMPS and stamp.serial > 0
        return is_one and int(self._stamps[stamp.slot]) == stamp.serial

    def close(self) -> None:
        """Let go of the peer's memory."""
        self._own = self._arrays = ()
        self._stamps = np.zeros(0, np.uint64)
        with suppress(BufferError):  # a copy that failed holds it a little longer
            self._mapping.close()


def make_shared_pool(shape: PoolShape) -> SharedPool | None:
    """Return a pool of zeros, or None where the system has no memory of this kind.

    Raises:
        MemoryError: it is larger than this machine's memory.
    """
    if not hasattr(os, "memfd_create"):
        return None
    size = _file_bytes(shape)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > physical:
        raise MemoryError(f"a KV cache of {size} bytes; this machine has {physical}")
    try:
        fd = os.memfd_create("kvfabric-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        os.ftruncate(fd, size)
        mapping = mmap.mmap(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _fixed() | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE)
    except OSError:
        os.close(fd)
        return None
    return SharedPool(fd, mapping, shape)


def _fixed() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def _file_bytes(shape: PoolShape) -> int:
    return shape.num_bytes + NUM_STAMPS * _STAMP_BYTES


def _check(fd: int, num_bytes: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise PoolRefusedError("the peer's KV pool is no memory that can be sealed") from None
    if seals & _fixed() != _fixed():
        raise PoolRefusedError("the peer's KV pool is not sealed: it could be cut while it is read")
    size = os.fstat(fd).st_size
    if size != num_bytes:
        raise PoolRefusedError(f"the peer's KV pool has {size} bytes, not {num_bytes}")
