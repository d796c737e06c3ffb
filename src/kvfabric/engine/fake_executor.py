"""An executor without a model: its next token is a checksum of the KV cache it was shown.

Every layer keeps one number per token, made from token, position and layer. The next token mixes
those numbers of all positions, read through the block table. So one block that is missing, moved to
the wrong place or given to somebody else too soon changes the text, which ``reference_tokens``
knows without any cache.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvfabric.engine.executor_port import (
    EngineStep,
    FinishReason,
    NewRequest,
    Reached,
    SampledToken,
    Sampling,
    ScheduledTokens,
    StepOutput,
)

VOCAB_SIZE = 1009
_TOKEN, _POSITION, _LAYER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), 977


def _values(token_ids: Sequence[int], first: int, layer: int) -> NDArray[np.uint64]:
    """Return the KV cache of tokens from position ``first`` on, in one layer."""
    tokens = np.asarray(token_ids, np.uint64) + np.uint64(1)
    positions = np.arange(first, first + len(token_ids), dtype=np.uint64)
    mixed = tokens * _TOKEN + positions * _POSITION + np.uint64(layer * _LAYER)
    return mixed ^ (mixed >> np.uint64(29))


def _next_token(cache: Sequence[NDArray[np.uint64]]) -> int:
    total = 0
    for values in cache:
        weights = np.arange(1, 2 * len(values), 2, dtype=np.uint64)
        total ^= int((values * weights).sum(dtype=np.uint64))
    return total % VOCAB_SIZE


def _finish(output_ids: Sequence[int], sampling: Sampling) -> FinishReason | None:
    if output_ids[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(output_ids) >= sampling.max_tokens else None


def reference_tokens(
    prompt_ids: Sequence[int], sampling: Sampling, *, num_layers: int = 2
) -> list[int]:
    """Return what an executor generates, computed from the tokens alone."""
    output_ids: list[int] = []
    while True:
        known = [*prompt_ids, *output_ids]
        output_ids.append(_next_token([_values(known, 0, i) for i in range(num_layers)]))
        if _finish(output_ids, sampling) is not None:
            return output_ids


class _Known:
    """A request the executor knows."""

    __slots__ = ("output_ids", "prompt_ids", "sampling", "table")

    def __init__(self, new: NewRequest) -> None:
        self.prompt_ids = new.prompt_ids
        self.sampling = new.sampling
        self.output_ids = list(new.output_ids)
        self.table: list[int] = []


class FakeExecutor:
    """An ``Executor`` that needs no torch and no time, unless it is given some."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_layers: int = 2,
        step_ns: Callable[[EngineStep], int] | None = None,
        memory: memoryview | None = None,
    ) -> None:
        """Make an empty KV cache.

        Args:
            num_blocks: the null block included.
            block_size: tokens per block.
            num_layers: layers of the cache.
            step_ns: how long a step takes, slept through; no time by default.
            memory: zeros where the cache is to lie, 8 bytes per layer and token.
        """
        shape = num_layers, num_blocks, block_size
        self._cache: NDArray[np.uint64] = (
            np.zeros(shape, np.uint64)
            if memory is None
            else np.frombuffer(memory, np.uint64, num_layers * num_blocks * block_size)
        ).reshape(shape)
        self._step_ns = step_ns
        self._known: dict[int, _Known] = {}

    @property
    def num_known(self) -> int:
        """Return the requests it has been told of and not told to forget."""
        return len(self._known)

    @property
    def num_layers(self) -> int:
        """Return the layers of the cache."""
        return len(self._cache)

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block, all layers."""
        num_layers, _, block_size = self._cache.shape
        return int(num_layers * block_size * self._cache.itemsize)

    def run(self, step: EngineStep, reached: Reached | None = None) -> StepOutput:
        """Compute a step, layer by layer; its time is shared out evenly among the layers."""
        duration_ns = 0 if self._step_ns is None else self._step_ns(step)
        for request_id in step.gone:
            self._known.pop(request_id, None)
        for new in step.new:
            self._known[new.request_id] = _Known(new)
        num_layers = len(self._cache)
        for layer in range(num_layers):
            if duration_ns:
                time.sleep(duration_ns / num_layers / 1e9)
            for share in step.scheduled:  # all are written before one is read: prompts share blocks
                self._write(share, layer)
            if reached is not None and layer + 1 in step.layer_ends:
                reached(layer + 1)
        samples = [share for share in step.scheduled if share.samples]
        ids = [self._next_id(share) for share in samples]  # all of them before one is taken
        tokens = map(self._take, samples, ids)
        return StepOutput(tuple(tokens), duration_ns)

    def _write(self, share: ScheduledTokens, layer: int) -> None:
        known = self._known[share.request_id]
        known.table[share.table_start :] = share.new_blocks
        end = share.first + share.num_tokens
        token_ids = [*known.prompt_ids, *known.output_ids][share.first : end]
        assert len(token_ids) == share.num_tokens, "tokens that are not there"
        if not 0 <= min(token_ids) <= max(token_ids) < VOCAB_SIZE:
            raise IndexError(f"token ids {min(token_ids)} to {max(token_ids)}")
        blocks, offsets = self._places(known, share.first, end)
        self._cache[layer, blocks, offsets] = _values(token_ids, share.first, layer)

    def _next_id(self, share: ScheduledTokens) -> int:
        known = self._known[share.request_id]
        end = share.first + share.num_tokens
        assert end == len(known.prompt_ids) + len(known.output_ids), "not the last token"
        blocks, offsets = self._places(known, 0, end)
        return _next_token([cache[blocks, offsets] for cache in self._cache])

    def _take(self, share: ScheduledTokens, token_id: int) -> SampledToken:
        known = self._known[share.request_id]
        known.output_ids.append(token_id)
        finish = _finish(known.output_ids, known.sampling)
        return SampledToken(share.request_id, token_id, finish)

    def _places(
        self, known: _Known, first: int, end: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        positions = np.arange(first, end)
        size = self._cache.shape[2]
        return np.asarray(known.table, np.int64)[positions // size], positions % size

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the cache of whole blocks of some layers, layer by layer, as bytes."""
        found = self._cache[first_layer:end_layer, list(block_ids)]
        return memoryview(found.tobytes())

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Put bytes as ``read_blocks`` gives them into whole blocks of some layers."""
        shape = end_layer - first_layer, len(block_ids), self._cache.shape[2]
        values = np.frombuffer(data, np.uint64).reshape(shape)
        self._cache[first_layer:end_layer, list(block_ids)] = values

    def forget_requests(self) -> None:
        """Know no request any more."""
        self._known.clear()
