"""A decoder-only transformer over a flattened batch of tokens: Llama, Qwen2, Qwen3 and GPT-2.

It knows nothing of requests: attention is handed in, and with it the KV cache.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, rms_norm, silu

from kvfabric.engine.model_spec import ModelSpec
from kvfabric.engine.projection import Projection
from kvfabric.engine.rope import inverse_frequencies, rotate, rotation
from kvfabric.engine.weights import DecoderWeights, LayerWeights


class Attention(Protocol):
    """Mixes tokens; everything else in a decoder is per token."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return ``[tokens, heads * head_dim]``; see ``PagedAttention.attend``."""
        ...


class Decoder:
    """Weights and how they are applied."""

    def __init__(self, spec: ModelSpec, weights: DecoderWeights) -> None:
        """Take weights, all in one dtype on one device."""
        self.spec, self.weights = spec, weights
        self._project = Projection(weights.embedding.dtype, weights.embedding.device)
        self._frequencies: Tensor | None = None
        if spec.rope is not None:
            frequencies = inverse_frequencies(spec.rope, spec.head_dim)
            self._frequencies = frequencies.to(weights.embedding.device)

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Return the last layer's output ``[tokens, hidden]`` of tokens at their positions."""
        weights = self.weights
        x = embedding(token_ids, weights.embedding)
        turn: tuple[Tensor, Tensor] | None = None
        if self._frequencies is not None:
            turn = rotation(positions, self._frequencies, x.dtype)
        if weights.positions is not None:
            x = x + embedding(positions, weights.positions)
        for index, layer in enumerate(weights.layers):
            x = x + self._attention(index, layer, x, turn, attention)
            x = x + self._mlp(layer, x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return fp32 logits ``[rows, vocab]`` of rows of ``hidden``."""
        weights = self.weights
        normed = self._norm(hidden, weights.final_norm, weights.final_norm_bias)
        return self._project(normed, weights.head).to(torch.float32)

    def _norm(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.spec.layer_norm:
            return layer_norm(x, weight.shape, weight, bias, self.spec.norm_eps)
        return rms_norm(x, weight.shape, weight, self.spec.norm_eps)

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        turn: tuple[Tensor, Tensor] | None,
        attention: Attention,
    ) -> Tensor:
        spec = self.spec
        normed = self._norm(x, layer.attention_norm, layer.attention_norm_bias)
        heads = self._project(normed, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, spec.head_dim)
        q_end, k_end = spec.num_heads, spec.num_heads + spec.num_kv_heads
        v = heads[:, k_end:]
        if layer.q_norm is None or layer.k_norm is None:
            q_and_k = heads[:, :k_end]
        else:
            q = self._norm(heads[:, :q_end], layer.q_norm, None)
            q_and_k = torch.cat((q, self._norm(heads[:, q_end:k_end], layer.k_norm, None)), 1)
        if turn is not None:
            q_and_k = rotate(q_and_k, *turn)
        mixed = attention.attend(index, q_and_k[:, :q_end], q_and_k[:, q_end:], v)
        return self._project(mixed, layer.out, layer.out_bias)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        normed = self._norm(x, layer.mlp_norm, layer.mlp_norm_bias)
        up = self._project(normed, layer.up, layer.up_bias)
        if self.spec.layer_norm:
            inner = gelu(up, approximate="tanh")
        else:
            size = self.spec.intermediate_size
            inner = silu(up[:, :size]).mul_(up[:, size:])
        return self._project(inner, layer.down, layer.down_bias)
