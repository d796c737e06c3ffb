"""Decodes a batch of one token per request with the kernels of ``cpu_kernels``.

For decoders with RMSNorm and gated SiLU (Llama, Qwen2, Qwen3) on a CPU, with a KV cache in the
weights' dtype, bf16 or fp32. Prompts, other models and other devices go through ``Decoder``.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from kvfabric.engine.cpu_kernels import decode_layer, head_logits
from kvfabric.engine.kv_tensors import KvTensors, PlainKvTensors
from kvfabric.engine.model_spec import ModelSpec
from kvfabric.engine.projection import multiplies_slowly
from kvfabric.engine.rope import inverse_frequencies
from kvfabric.engine.step_batch import RequestShare
from kvfabric.engine.weights import DecoderWeights, LayerWeights

Floats = NDArray[np.float32]
Words = NDArray[Any]  # bf16 as uint16, or fp32
_NONE: Floats = np.zeros(0, np.float32)
_MOST_THREADS: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 — set on import


def pays(weights: DecoderWeights) -> bool:
    """Return whether they are known to be faster than torch here: bf16 on a CPU that lacks it."""
    embedded = weights.embedding
    return embedded.dtype is torch.bfloat16 and multiplies_slowly(embedded.dtype, embedded.device)


def decoder_for(
    spec: ModelSpec, weights: DecoderWeights, kv: KvTensors
) -> "CompiledDecoder | None":
    """Return a decoder of this model in this cache, or None where the kernels cannot."""
    dtype = weights.embedding.dtype
    takes = (
        spec.rope is not None
        and not spec.layer_norm
        and weights.positions is None
        and weights.embedding.device.type == "cpu"
        and dtype in {torch.bfloat16, torch.float32}
    )
    if takes and isinstance(kv, PlainKvTensors) and kv.pool.dtype is dtype:
        return CompiledDecoder(spec, weights, kv)
    return None


class CompiledDecoder:
    """Weights and a KV cache as arrays, and what a step needs besides; see ``cpu_kernels``.

    Making one loads the kernels, or compiles them: the very first time of an installation takes
    half a minute.
    """

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, kv: PlainKvTensors) -> None:
        """Take what ``decoder_for`` accepts; nothing of it is copied but norms and biases."""
        assert spec.rope is not None
        self._spec, self._embedding = spec, weights.embedding
        self._eps = np.float32(spec.norm_eps)
        self._layers = [_arrays(layer) for layer in weights.layers]
        self._pools = [(_words(layer[0]), _words(layer[1])) for layer in kv.pool]
        self._final_norm, self._head = _floats(weights.final_norm), _words(weights.head)
        self._frequencies = inverse_frequencies(spec.rope, spec.head_dim)
        self._block_size = kv.layout.block_size
        self._scratch = Scratch(spec, kv.layout.block_size)
        self._load_kernels()

    def _load_kernels(self) -> None:
        """Run a layer and the head on a cache of one block, so that no request waits for them."""
        spec, layer = self._spec, self._layers[0]
        pool = np.zeros_like(self._pools[0][0][:1])
        x = np.zeros((1, spec.hidden_size), np.float32)
        turn = np.zeros((1, spec.head_dim // 2), np.float32)
        zeros, ones = np.zeros((1, 1), np.int64), np.ones(1, np.int64)
        arrays = self._scratch.arrays(1, 1, 1)
        decode_layer(x, self._eps, layer, turn, turn, pool, pool, zeros, ones, arrays)
        out = self._scratch.logits(1)
        normed, wide, dots = arrays[0], arrays[7], arrays[8]
        head_logits(x, self._eps, self._final_norm, self._head, _NONE, normed, wide, dots, out)

    def logits(self, shares: Sequence[RequestShare]) -> Tensor:
        """Store K and V of every share's one token; return fp32 logits ``[shares, vocab]``.

        The logits are valid until the next call.
        """
        lengths = np.array([share.first + 1 for share in shares], np.int64)
        table = self._table(shares, lengths)
        ids = torch.tensor([share.token_ids[0] for share in shares])
        x = embedding(ids, self._embedding).to(torch.float32).numpy()
        angles = torch.from_numpy(lengths - 1).to(torch.float32)[:, None] * self._frequencies
        cosines, sines = angles.cos().numpy(), angles.sin().numpy()
        threads = min(torch.get_num_threads(), _MOST_THREADS)
        numba.set_num_threads(threads)
        arrays = self._scratch.arrays(len(shares), threads, int(lengths.max()))
        for layer, (k_pool, v_pool) in zip(self._layers, self._pools, strict=True):
            decode_layer(
                x, self._eps, layer, cosines, sines, k_pool, v_pool, table, lengths, arrays
            )
        normed, wide, dots = arrays[0], arrays[7], arrays[8]
        out = self._scratch.logits(len(shares))
        head_logits(x, self._eps, self._final_norm, self._head, _NONE, normed, wide, dots, out)
        return torch.from_numpy(out)

    def _table(
        self, shares: Sequence[RequestShare], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        num_blocks = -(-lengths // self._block_size)
        table = np.zeros((len(shares), int(num_blocks.max())), np.int64)
        for row, share in enumerate(shares):
            table[row, : num_blocks[row]] = share.table[: num_blocks[row]]
        return table


class Scratch:
    """What the kernels write on the way, kept between steps: fresh pages cost more than a step."""

    def __init__(self, spec: ModelSpec, block_size: int) -> None:
        """Own nothing yet."""
        self._spec, self._block_size = spec, block_size
        self._shape = (0, 0, 0)
        self._arrays: tuple[Floats, ...] = ()
        self._logits = np.zeros((0, spec.vocab_size), np.float32)

    def arrays(self, rows: int, threads: int, length: int) -> tuple[Floats, ...]:
        """Return the arrays of a step.

        Normed, QKV, attention output, inner of the MLP, each ``[rows, ...]``; and of each thread:
        scores ``[heads, tokens]``, a tile of tokens ``[kv_heads, block_size, head_dim]``, queries
        ``[heads, head_dim]``, four widened rows, their products with the batch.
        """
        spec = self._spec
        if self._shape[:2] != (rows, threads) or self._shape[2] < length:
            tokens = max(length + length // 4, 64)
            heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
            widest = max(spec.hidden_size, spec.intermediate_size, heads * size)
            shapes: tuple[tuple[int, ...], ...] = (
                (rows, spec.hidden_size),
                (rows, (heads + 2 * kv_heads) * size),
                (rows, heads * size),
                (rows, spec.intermediate_size),
                (threads, heads, tokens),
                (threads, kv_heads, self._block_size, size),
                (threads, heads, size),
                (threads, 4, widest),
                (threads, 4, rows),
            )
            self._arrays = tuple(np.zeros(shape, np.float32) for shape in shapes)
            self._shape = (rows, threads, tokens)
        return self._arrays

    def logits(self, rows: int) -> Floats:
        """Return ``[rows, vocab]``."""
        if len(self._logits) < rows:
            self._logits = np.zeros((rows, self._spec.vocab_size), np.float32)
        return self._logits[:rows]


def _arrays(layer: LayerWeights) -> tuple[Words, ...]:
    """Return one layer in the order of ``decode_layer``."""
    return (
        _floats(layer.attention_norm),
        _words(layer.qkv),
        _floats(layer.qkv_bias),
        _floats(layer.q_norm),
        _floats(layer.k_norm),
        _words(layer.out),
        _floats(layer.out_bias),
        _floats(layer.mlp_norm),
        _words(layer.up),
        _floats(layer.up_bias),
        _words(layer.down),
        _floats(layer.down_bias),
    )


def _words(tensor: Tensor) -> Words:
    """Return a tensor's own memory as an array; bf16, which numpy lacks, as its bits."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _floats(tensor: Tensor | None) -> Floats:
    return _NONE if tensor is None else tensor.to(torch.float32).numpy()
