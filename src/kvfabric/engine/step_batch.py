"""One step as tensors: all tokens flattened, decodes first by falling context, then the chunks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvfabric.engine.kv_tensors import BlockRows

Ids = NDArray[np.int64]

# Requests decode together while their gathered K or V stays below this, so that attention finds it
# in the cache that the gather left it in; and while padding stays below a quarter.
GROUP_VALUES = 1 << 19
QUERY_ROWS = 256  # of a chunk with history, per attention call: bounds the mask


class RequestShare(NamedTuple):
    """One request's tokens in a step: ids from position ``first`` on, and its block table."""

    first: int
    token_ids: Sequence[int]
    table: Ids


class DecodeGroup(NamedTuple):
    """Decodes of like context, one token each: rows ``[start, end)`` of the step.

    Attributes:
        blocks: tables one after the other, padded with the null block to one length.
        num_keys: longest context, tokens.
        mask: ``[requests, 1, 1, num_keys]``, 0 or -inf; None where all contexts are equal.
    """

    start: int
    end: int
    blocks: BlockRows
    num_keys: int
    mask: Tensor | None


class PrefillChunk(NamedTuple):
    """One request's prompt tokens: rows ``[start, end)`` of the step, after ``first`` cached ones.

    ``masks`` are of ``QUERY_ROWS`` queries each, ``[queries, keys]``; none without history.
    """

    start: int
    end: int
    first: int
    blocks: BlockRows
    masks: tuple[Tensor, ...]


class StepBatch(NamedTuple):
    """What a decoder computes: ``token_ids``, ``positions`` and ``slots`` are ``[tokens]``."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


class BatchBuilder:
    """Makes step batches for one KV cache."""

    def __init__(
        self, block_size: int, values_per_token: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Remember the geometry; ``values_per_token``: K values of a token in one layer."""
        self._block_size, self._dtype, self._device = block_size, dtype, device
        self._group_keys = max(1, GROUP_VALUES // values_per_token)

    def build(self, shares: Sequence[RequestShare]) -> StepBatch:
        """Return the batch of shares that stand in order: decodes by falling context, chunks."""
        num_decodes = sum(len(share.token_ids) == 1 for share in shares)
        positions = np.concatenate(
            [np.arange(s.first, s.first + len(s.token_ids), dtype=np.int64) for s in shares]
        )
        size = self._block_size
        slots = np.concatenate([_slots(share, size) for share in shares])
        ids = np.fromiter((i for s in shares for i in s.token_ids), np.int64, len(positions))
        row, chunks = num_decodes, []
        for share in shares[num_decodes:]:
            chunks.append(self._chunk(share, row))
            row += len(share.token_ids)
        tensors = [torch.from_numpy(a).to(self._device) for a in (ids, positions, slots)]
        groups = tuple(self._groups(shares[:num_decodes]))
        return StepBatch(tensors[0], tensors[1], tensors[2], groups, tuple(chunks))

    def _groups(self, decodes: Sequence[RequestShare]) -> list[DecodeGroup]:
        groups, start = [], 0
        while start < len(decodes):
            keys = decodes[start].first + 1
            most = max(1, self._group_keys // keys)
            end = start + 1
            while end < min(len(decodes), start + most) and 4 * decodes[end].first >= 3 * keys - 64:
                end += 1
            groups.append(self._group(decodes[start:end], start))
            start = end
        return groups

    def _group(self, decodes: Sequence[RequestShare], start: int) -> DecodeGroup:
        keys = np.array([share.first + 1 for share in decodes])
        num_keys = int(keys[0])
        num_blocks = -(-num_keys // self._block_size)
        tables = np.zeros((len(decodes), num_blocks), np.int64)
        for row, share in enumerate(decodes):
            used = -(-(share.first + 1) // self._block_size)
            tables[row, :used] = share.table[:used]
        mask = None
        if keys[-1] != num_keys:
            padded = torch.from_numpy(np.arange(num_keys)[None] >= keys[:, None])
            mask = torch.zeros(padded.shape, dtype=self._dtype).masked_fill_(padded, -torch.inf)
            mask = mask[:, None, None].to(self._device)
        end = start + len(decodes)
        return DecodeGroup(start, end, self._rows(tables.reshape(-1)), num_keys, mask)

    def _chunk(self, share: RequestShare, start: int) -> PrefillChunk:
        count = len(share.token_ids)
        masks = []
        for row in range(0, count, QUERY_ROWS) if share.first else ():
            rows = min(QUERY_ROWS, count - row)
            mask = torch.zeros(rows, share.first + row + rows, dtype=self._dtype)
            square = torch.full((rows, rows), -torch.inf, dtype=self._dtype)
            mask[:, share.first + row :] = square.triu_(1)
            masks.append(mask.to(self._device))
        num_blocks = -(-(share.first + count) // self._block_size)
        blocks = self._rows(share.table[:num_blocks])
        return PrefillChunk(start, start + count, share.first, blocks, tuple(masks))

    def _rows(self, ids: Ids) -> BlockRows:
        consecutive = len(ids) == 1 or bool((np.diff(ids) == 1).all())
        tensor = torch.from_numpy(ids.copy()).to(self._device)
        return BlockRows(tensor, int(ids[0]) if consecutive else None)


def _slots(share: RequestShare, block_size: int) -> Ids:
    positions = np.arange(share.first, share.first + len(share.token_ids), dtype=np.int64)
    slots: Ids = share.table[positions // block_size] * block_size + positions % block_size
    return slots
