"""Where KV blocks lie: in one flat pool that sockets read and write directly, or behind copies."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.block_runs import runs
from kvfabric.engine.transport.pool_shape import PoolShape
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
    """Blocks in one flat pool on the CPU: no copies.

    ``memory`` is writable. Wire order: part by part of the pool, each layer by layer, plane by
    plane.
    """

    def __init__(self, memory: memoryview, shape: PoolShape) -> None:
        """Serve a pool."""
        self._shape, self._views = shape, shape.views(memory)

    def num_bytes(self, piece: Piece) -> int:
        """Return the bytes of a piece."""
        num_layers = piece.end_layer - piece.first_layer
        return num_layers * len(piece.block_ids) * self._shape.block_bytes_per_layer

    def outgoing(self, piece: Piece) -> Sequence[memoryview]:
        """Return the pool's own bytes, run by run of neighbouring blocks."""
        shape, (block_ids, first_layer, end_layer) = self._shape, piece
        assert 0 <= first_layer <= end_layer <= shape.num_layers
        assert all(0 <= block < shape.num_blocks for block in block_ids)
        places = [(block_ids[start], end - start) for start, end in runs(block_ids)]
        found = []
        for (num_planes, size), view in zip(shape.parts, self._views, strict=True):
            plane = shape.num_blocks * size
            for base in range(
                first_layer * num_planes * plane, end_layer * num_planes * plane, plane
            ):
                begins = [(base + first * size, count * size) for first, count in places]
                found += [view[begin : begin + length] for begin, length in begins]
        return found

    incoming = outgoing

    def received(self, piece: Piece, views: Sequence[memoryview]) -> None:
        """Do nothing: the bytes are in place."""
