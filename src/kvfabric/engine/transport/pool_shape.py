"""How a pool of KV blocks lies in one flat memory on the CPU."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfabric.engine.kv_layout import BYTES_BY_KV_DTYPE, SCALE_BYTES, KvLayout

Bytes = NDArray[np.uint8]
_ALIGNMENT = 64  # of each part: a cache line, and more than any value needs


class PoolPart(NamedTuple):
    """One array of a pool, ``[layers, num_planes, blocks, block_bytes]``.

    Attributes:
        num_planes: per layer: 2 where K and V lie apart.
        block_bytes: of a block in one plane.
    """

    num_planes: int
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """Parts one behind the other: values, and for int8 their scales."""

    num_layers: int
    num_blocks: int
    parts: tuple[PoolPart, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the memory."""
        return sum(map(self._room, self.parts))

    @property
    def block_bytes_per_layer(self) -> int:
        """Return the bytes of one block in one layer."""
        return sum(part.num_planes * part.block_bytes for part in self.parts)

    def _room(self, part: PoolPart) -> int:
        return -(-self._size(part) // _ALIGNMENT) * _ALIGNMENT

    def _size(self, part: PoolPart) -> int:
        return self.num_layers * part.num_planes * self.num_blocks * part.block_bytes

    def views(self, memory: memoryview) -> tuple[memoryview, ...]:
        """Return the bytes of each part of a flat memory, which may be longer."""
        flat = memory.cast("B")
        assert len(flat) >= self.num_bytes, (len(flat), self.num_bytes)
        found, offset = [], 0
        for part in self.parts:
            found.append(flat[offset : offset + self._size(part)])
            offset += self._room(part)
        return tuple(found)

    def arrays(self, memory: memoryview) -> tuple[Bytes, ...]:
        """Return each part of a memory as an array of bytes, not copied."""
        return tuple(
            np.frombuffer(view, np.uint8).reshape(
                self.num_layers, part.num_planes, self.num_blocks, part.block_bytes
            )
            for part, view in zip(self.parts, self.views(memory), strict=True)
        )


def pool_shape_of(layout: KvLayout, num_blocks: int) -> PoolShape:
    """Return the pool of a KV cache: K and V apart; the scales of int8 behind all values."""
    parts = [PoolPart(2, layout.values_per_block * BYTES_BY_KV_DTYPE[layout.kv_dtype])]
    if layout.kv_dtype == "int8":
        parts.append(PoolPart(2, layout.block_size * layout.num_kv_heads * SCALE_BYTES))
    return PoolShape(num_layers=layout.num_layers, num_blocks=num_blocks, parts=tuple(parts))
