"""Where KV blocks lie: in one flat pool that sockets read and write directly, or behind copies."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.port import Piece


class BlockStore(Protocol):
    """Copies blocks out and in; an executor is one."""

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the bytes of a piece in wire order."""
        ...

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Store the bytes of a piece in wire order."""
        ...


class CopiedBlocks:
    """Blocks of an executor: gathered before sending, received beside it and then put in place."""

    def __init__(self, store: BlockStore, layout: KvLayout, num_spares: int = 4) -> None:
        """Serve a store; up to ``num_spares`` receive buffers are kept for the next pieces."""
        self._store, self._layout = store, layout
        self._spares: deque[memoryview] = deque(maxlen=num_spares)

    def num_bytes(self, piece: Piece) -> int:
        """Return the bytes of a piece."""
        num_layers = piece.end_layer - piece.first_layer
        return self._layout.wire_bytes(len(piece.block_ids), num_layers)

    def outgoing(self, piece: Piece) -> Sequence[memoryview]:
        """Return a copy of a piece."""
        return (self._store.read_blocks(*piece),)

    def incoming(self, piece: Piece) -> Sequence[memoryview]:
        """Return a buffer as large as a piece: fresh pages cost as much as the copy itself."""
        size = self.num_bytes(piece)
        for _ in range(len(self._spares)):
            try:
                spare = self._spares.popleft()
            except IndexError:  # another thread was faster
                break
            if len(spare) >= size:
                return (spare[:size],)
        return (np.empty(size, np.uint8).data,)

    def received(self, piece: Piece, views: Sequence[memoryview]) -> None:
        """Put a received piece in place."""
        (buffer,) = views
        self._store.write_blocks(*piece, buffer)
        self._spares.append(memoryview(buffer.obj).cast("B"))  # whole again


class PooledBlocks:
    """Blocks in one pool ``[layers, 2, blocks, bytes of K or V of a block]``: no copies.

    For values without scales beside them, on the CPU; ``memory`` is writable and of one byte an
    item.
    """

    def __init__(self, memory: memoryview, layout: KvLayout, num_blocks: int) -> None:
        """Serve a pool."""
        self._memory = memory.cast("B")
        self._num_layers = layout.num_layers
        self._size = layout.block_bytes_per_layer // 2
        self._num_blocks = num_blocks
        num_bytes = layout.num_layers * 2 * num_blocks * self._size
        assert len(self._memory) == num_bytes, (len(self._memory), num_bytes)

    def num_bytes(self, piece: Piece) -> int:
        """Return the bytes of a piece."""
        return (piece.end_layer - piece.first_layer) * 2 * len(piece.block_ids) * self._size

    def outgoing(self, piece: Piece) -> Sequence[memoryview]:
        """Return the pool's own bytes, run by run of neighbouring blocks."""
        assert 0 <= piece.first_layer <= piece.end_layer <= self._num_layers
        assert all(0 <= block < self._num_blocks for block in piece.block_ids)
        size, memory = self._size, self._memory
        runs = [(first * size, end * size) for first, end in _runs(piece.block_ids)]
        plane = self._num_blocks * size
        bases = range(2 * piece.first_layer * plane, 2 * piece.end_layer * plane, plane)
        return [memory[base + first : base + end] for base in bases for first, end in runs]

    incoming = outgoing

    def received(self, piece: Piece, views: Sequence[memoryview]) -> None:
        """Do nothing: the bytes are in place."""


def _runs(block_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ``(first, end)`` of each run of consecutive ids, in order."""
    if not block_ids:
        return
    first = block_ids[0]
    for block, following in pairwise(block_ids):
        if following != block + 1:
            yield first, block + 1
            first = following
    yield first, block_ids[-1] + 1
