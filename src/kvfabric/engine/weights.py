"""The tensors of a decoder, fused as it uses them, and how they are found by name.

A source knows tensors by their Hugging Face names; Q, K and V become one matrix, gate and up
another, and GPT-2's transposed ``Conv1D`` matrices are turned.
"""

import hashlib
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kvfabric.engine.model_spec import Family, ModelSpec
from kvfabric.errors import ConfigError


class TensorSource(Protocol):
    """Tensors by Hugging Face name."""

    @property
    def names(self) -> AbstractSet[str]:
        """Return the names there are."""
        ...

    def get(self, name: str) -> Tensor:
        """Return one tensor."""
        ...


class LayerWeights(NamedTuple):
    """One layer: ``[out, in]`` matrices; a bias is None where the model has none.

    ``qkv`` has rows of Q heads, then K heads, then V heads; ``up`` of the gate, then of the up
    projection (GPT-2: of the one projection).
    """

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    up: Tensor
    down: Tensor
    attention_norm_bias: Tensor | None = None
    qkv_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    out_bias: Tensor | None = None
    mlp_norm_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


class DecoderWeights(NamedTuple):
    """A whole model; ``head`` is the embedding itself where the two are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
    positions: Tensor | None = None
    final_norm_bias: Tensor | None = None


class _Reader:
    """Takes tensors from a source, checks their shapes, and puts them where they are used."""

    def __init__(self, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source, self._dtype, self._device = source, dtype, device

    def take(self, name: str, *shape: int, turned: bool = False) -> Tensor:
        """Return one tensor of this shape; ``turned``: stored as its transpose."""
        if name not in self._source.names:
            raise ConfigError(f"the weights have no tensor {name!r}")
        tensor = self._source.get(name)
        tensor = tensor.t() if turned else tensor
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name!r} has shape {tuple(tensor.shape)}, not {shape}")
        return tensor.to(device=self._device, dtype=self._dtype).contiguous()

    def join(self, *parts: tuple[str, tuple[int, ...]]) -> Tensor:
        """Return several tensors, one below the other."""
        return torch.cat([self.take(name, *shape) for name, shape in parts])


def load_weights(
    spec: ModelSpec, source: TensorSource, *, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Return the weights of a model, in one dtype on one device.

    Raises:
        ConfigError: a tensor is missing or has another shape than the model's.
    """
    reader = _Reader(source, dtype, device)
    if spec.family is Family.GPT2:
        return _gpt2(spec, reader, source)
    hidden, vocab = spec.hidden_size, spec.vocab_size
    embedding = reader.take("model.embed_tokens.weight", vocab, hidden)
    head = embedding if spec.tied_embeddings else reader.take("lm_head.weight", vocab, hidden)
    layers = tuple(_rotary_layer(spec, reader, layer) for layer in range(spec.num_layers))
    return DecoderWeights(embedding, layers, reader.take("model.norm.weight", hidden), head)


def _rotary_layer(spec: ModelSpec, reader: _Reader, layer: int) -> LayerWeights:
    at, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows = (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows))

    def norm(name: str) -> Tensor:
        return reader.take(f"model.layers.{layer}.{name}.weight", hidden)

    return LayerWeights(
        attention_norm=norm("input_layernorm"),
        qkv=reader.join(*((f"{at}{name}.weight", (count, hidden)) for name, count in rows)),
        out=reader.take(f"{at}o_proj.weight", hidden, q_rows),
        mlp_norm=norm("post_attention_layernorm"),
        up=reader.join(
            (f"{mlp}gate_proj.weight", (inner, hidden)), (f"{mlp}up_proj.weight", (inner, hidden))
        ),
        down=reader.take(f"{mlp}down_proj.weight", hidden, inner),
        qkv_bias=reader.join(*((f"{at}{name}.bias", (count,)) for name, count in rows))
        if spec.qkv_bias
        else None,
        q_norm=reader.take(f"{at}q_norm.weight", spec.head_dim) if spec.qk_norm else None,
        k_norm=reader.take(f"{at}k_norm.weight", spec.head_dim) if spec.qk_norm else None,
        out_bias=reader.take(f"{at}o_proj.bias", hidden) if spec.out_bias else None,
        up_bias=reader.join((f"{mlp}gate_proj.bias", (inner,)), (f"{mlp}up_proj.bias", (inner,)))
        if spec.mlp_bias
        else None,
        down_bias=reader.take(f"{mlp}down_proj.bias", hidden) if spec.mlp_bias else None,
    )


def _gpt2(spec: ModelSpec, reader: _Reader, source: TensorSource) -> DecoderWeights:
    prefix = "transformer." if "transformer.wte.weight" in source.names else ""
    hidden, inner = spec.hidden_size, spec.intermediate_size

    def layer(index: int) -> LayerWeights:
        at = f"{prefix}h.{index}."
        return LayerWeights(
            attention_norm=reader.take(f"{at}ln_1.weight", hidden),
            attention_norm_bias=reader.take(f"{at}ln_1.bias", hidden),
            qkv=reader.take(f"{at}attn.c_attn.weight", 3 * hidden, hidden, turned=True),
            qkv_bias=reader.take(f"{at}attn.c_attn.bias", 3 * hidden),
            out=reader.take(f"{at}attn.c_proj.weight", hidden, hidden, turned=True),
            out_bias=reader.take(f"{at}attn.c_proj.bias", hidden),
            mlp_norm=reader.take(f"{at}ln_2.weight", hidden),
            mlp_norm_bias=reader.take(f"{at}ln_2.bias", hidden),
            up=reader.take(f"{at}mlp.c_fc.weight", inner, hidden, turned=True),
            up_bias=reader.take(f"{at}mlp.c_fc.bias", inner),
            down=reader.take(f"{at}mlp.c_proj.weight", hidden, inner, turned=True),
            down_bias=reader.take(f"{at}mlp.c_proj.bias", hidden),
        )

    embedding = reader.take(f"{prefix}wte.weight", spec.vocab_size, hidden)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(spec.num_layers)),
        final_norm=reader.take(f"{prefix}ln_f.weight", hidden),
        final_norm_bias=reader.take(f"{prefix}ln_f.bias", hidden),
        head=embedding,
        positions=reader.take(f"{prefix}wpe.weight", spec.max_positions, hidden),
    )


def weights_digest(weights: DecoderWeights) -> str:
    """Return 16 hex digits that differ between models, of shapes and the ends of every tensor.

    Two workers that hand KV blocks to each other compare it. It does not depend on the file format
    that the weights came from, and reads about 4 KB per tensor instead of all of it.
    """
    digest = hashlib.sha256()
    tensors = [weights.embedding, weights.final_norm, weights.head]
    tensors += [t for layer in weights.layers for t in layer if t is not None]
    for tensor in tensors:
        flat = tensor.flatten()
        ends = torch.cat((flat[:512], flat[-512:])).to(device="cpu", dtype=torch.float32)
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(ends.numpy().tobytes())
    return digest.hexdigest()[:16]


def weight_bytes(weights: DecoderWeights) -> int:
    """Return the bytes that one decode step reads of the weights: all but the embedding's rows."""
    tensors = [weights.final_norm, weights.head]
    tensors += [t for layer in weights.layers for t in layer if t is not None]
    return sum(t.numel() * t.element_size() for t in tensors)
