"""The paged KV cache in 8 bits: half the bytes of bf16 to hold and to transfer, at an error.

Each token's K and V of each head are scaled by their largest magnitude / 127. The error of a value
is at most half a step, 1/254 of that magnitude. On a CPU this is for capacity, not for speed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvfabric.engine.gather_buffer import GatherBuffer
from kvfabric.engine.kv_layout import SCALE_BYTES, KvLayout
from kvfabric.engine.kv_tensors import BlockRows, as_bytes, from_bytes
from kvfabric.engine.transport.pool_shape import pool_shape_of


class Int8KvTensors:
    """Values ``[layers, 2, blocks, block_size, kv_heads, head_dim]`` in int8, scales in fp32.

    The scales lie beside them, ``[layers, 2, blocks, block_size, kv_heads]``. Wire order: all
    values of the layers and blocks sent, then all their scales.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        device: torch.device,
        dtype: torch.dtype,
        memory: memoryview | None = None,
    ) -> None:
        """Make the pool; ``dtype`` is what attention computes in, ``memory`` as in plain ones."""
        self.layout, self.num_blocks, self._dtype = layout, num_blocks, dtype
        shape = (layout.num_layers, 2, num_blocks, layout.block_size, layout.num_kv_heads)
        if memory is None:
            self.pool = torch.zeros(*shape, layout.head_dim, dtype=torch.int8, device=device)
            self.scales = torch.zeros(*shape, dtype=torch.float32, device=device)
        else:
            values, scales = pool_shape_of(layout, num_blocks).views(memory)
            self.pool = from_bytes(values, torch.int8, (*shape, layout.head_dim))
            self.scales = from_bytes(scales, torch.float32, shape)
        self._codes = GatherBuffer(torch.int8, device)
        self._factors = GatherBuffer(torch.float32, device)
        self._restored = (GatherBuffer(dtype, device), GatherBuffer(dtype, device))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K and V of one layer at slots, rounded to 8 bits."""
        for part, values in enumerate((k, v)):
            codes, scales = quantize(values)
            self.pool[layer, part].flatten(0, 1).index_copy_(0, slots, codes)
            self.scales[layer, part].flatten(0, 1).index_copy_(0, slots, scales)

    def context(self, layer: int, blocks: BlockRows) -> tuple[Tensor, Tensor]:
        """Return K and V of whole blocks, restored into buffers."""
        return self._restore(layer, 0, blocks.ids), self._restore(layer, 1, blocks.ids)

    def _restore(self, layer: int, part: int, ids: Tensor) -> Tensor:
        pool, scales = self.pool[layer, part].flatten(1), self.scales[layer, part].flatten(1)
        codes = self._codes.rows(len(ids), pool.shape[1])
        factors = self._factors.rows(len(ids), scales.shape[1])
        torch.index_select(pool, 0, ids, out=codes)
        torch.index_select(scales, 0, ids, out=factors)
        head_dim = self.layout.head_dim
        restored = self._restored[part].rows(factors.numel(), head_dim)
        restored.copy_(codes.view(-1, head_dim))
        restored.mul_(factors.view(-1, 1).to(self._dtype))
        return restored.view(-1, self.layout.num_kv_heads, head_dim)

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the bytes of whole blocks in wire order."""
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self.pool.device)
        codes = self.pool[first_layer:end_layer].index_select(2, ids)
        scales = self.scales[first_layer:end_layer].index_select(2, ids)
        return memoryview(b"".join((as_bytes(codes), as_bytes(scales))))

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Store bytes in wire order into whole blocks."""
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self.pool.device)
        layers, size = end_layer - first_layer, self.layout.block_size
        shape = (layers, 2, len(block_ids), size, self.layout.num_kv_heads)
        split = len(data) - layers * 2 * len(block_ids) * size * shape[-1] * SCALE_BYTES
        codes = from_bytes(data[:split], torch.int8, (*shape, self.layout.head_dim))
        scales = from_bytes(data[split:], torch.float32, shape)
        self.pool[first_layer:end_layer].index_copy_(2, ids, codes.to(self.pool.device))
        self.scales[first_layer:end_layer].index_copy_(2, ids, scales.to(self.pool.device))


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return 8-bit codes of ``[..., head_dim]`` and one fp32 scale ``[...]`` per vector."""
    wide = values.to(torch.float32)
    scales = wide.abs().amax(-1) / 127
    codes = (wide / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).round_()
    return codes.to(torch.int8), scales
