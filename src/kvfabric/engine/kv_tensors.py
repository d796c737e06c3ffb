"""The paged KV cache: one tensor per worker, read and written by block and by slot.

A slot is a token's place: ``block id * block_size + offset``. Block 0 is the null block: padding
reads it, no token is written there.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kvfabric.engine.gather_buffer import GatherBuffer
from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.pool_shape import pool_shape_of


class BlockRows(NamedTuple):
    """Which blocks to read, in order; ``first`` says that they are consecutive from it on."""

    ids: Tensor
    first: int | None = None


class KvTensors(Protocol):
    """A worker's KV cache, whatever its values are stored as."""

    layout: KvLayout
    num_blocks: int

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K and V ``[tokens, kv_heads, head_dim]`` of one layer at slots ``[tokens]``."""
        ...

    def context(self, layer: int, blocks: BlockRows) -> tuple[Tensor, Tensor]:
        """Return K and V of whole blocks, each ``[blocks * block_size, kv_heads, head_dim]``.

        They are valid until the next call.
        """
        ...

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the bytes of whole blocks in wire order."""
        ...

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Store bytes in wire order into whole blocks."""
        ...


class PlainKvTensors:
    """Values in the model's dtype, ``[layers, 2, blocks, block_size, kv_heads, head_dim]``.

    Wire order: ``[layers, 2, blocks sent, block_size, kv_heads, head_dim]``, little-endian.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        device: torch.device,
        memory: memoryview | None = None,
    ) -> None:
        """Make the pool, zeroed: a padded read must not meet infinities.

        ``memory``: where it lies, on the CPU, as ``pool_shape_of`` says; None allocates it.
        """
        self.layout, self.num_blocks = layout, num_blocks
        dtype: torch.dtype = getattr(torch, layout.kv_dtype)
        heads = (layout.num_kv_heads, layout.head_dim)
        shape = (layout.num_layers, 2, num_blocks, layout.block_size, *heads)
        if memory is None:
            self.pool = torch.zeros(shape, dtype=dtype, device=device)
        else:
            (values,) = pool_shape_of(layout, num_blocks).views(memory)
            self.pool = from_bytes(values, dtype, shape)
        self._blocks = [(kv[0].flatten(1), kv[1].flatten(1)) for kv in self.pool]
        self._slots = [(kv[0].view(-1, *heads), kv[1].view(-1, *heads)) for kv in self.pool]
        self._keys = GatherBuffer(dtype, device)
        self._values = GatherBuffer(dtype, device)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K and V of one layer at slots."""
        k_slots, v_slots = self._slots[layer]
        k_slots.index_copy_(0, slots, k)
        v_slots.index_copy_(0, slots, v)

    def context(self, layer: int, blocks: BlockRows) -> tuple[Tensor, Tensor]:
        """Return K and V of whole blocks: a view of consecutive ones, else a copy in a buffer."""
        count, size = blocks.ids.shape[0], self.layout.block_size
        if blocks.first is not None:
            k_slots, v_slots = self._slots[layer]
            start, end = blocks.first * size, (blocks.first + count) * size
            return k_slots[start:end], v_slots[start:end]
        k_blocks, v_blocks = self._blocks[layer]
        k, v = (buffer.rows(count, k_blocks.shape[1]) for buffer in (self._keys, self._values))
        torch.index_select(k_blocks, 0, blocks.ids, out=k)
        torch.index_select(v_blocks, 0, blocks.ids, out=v)
        heads = (self.layout.num_kv_heads, self.layout.head_dim)
        return k.view(-1, *heads), v.view(-1, *heads)

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the bytes of whole blocks in wire order."""
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self.pool.device)
        return as_bytes(self.pool[first_layer:end_layer].index_select(2, ids))

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Store bytes in wire order into whole blocks."""
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self.pool.device)
        part = self.pool[first_layer:end_layer]
        shape = (part.shape[0], 2, len(block_ids), *part.shape[3:])
        part.index_copy_(2, ids, from_bytes(data, self.pool.dtype, shape).to(self.pool.device))


def as_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, without a copy where it lies contiguous on the CPU."""
    flat = tensor.to("cpu").contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]  # typeshed knows no buffers before 3.12


def from_bytes(data: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return bytes as a tensor, on the CPU; read-only memory is copied first."""
    writable = bytearray(data) if data.readonly else data
    return torch.frombuffer(writable, dtype=dtype).view(shape)
