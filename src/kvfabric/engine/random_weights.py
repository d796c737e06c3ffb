"""Random weights of any shape from a seed, under Hugging Face names; for tests and benches."""

from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from kvfabric.engine.model_spec import Family, ModelSpec


class RandomWeights:
    """A tensor source: matrices N(0, 1 / in), half of it in embeddings, biases N(0, .02), norms ~1.

    Each tensor depends on the seed and on its name's place among the sorted names only.
    """

    def __init__(self, spec: ModelSpec, seed: int = 0) -> None:
        """Draw nothing yet."""
        self._shapes = tensor_shapes(spec)
        self._seeds = {name: seed * 100_003 + i for i, name in enumerate(sorted(self._shapes))}

    @property
    def names(self) -> AbstractSet[str]:
        """Return the names of all tensors of the model."""
        return self._shapes.keys()

    def get(self, name: str) -> Tensor:
        """Return one tensor, fp32."""
        shape = self._shapes[name]
        generator = torch.Generator().manual_seed(self._seeds[name])
        drawn: Tensor = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            # Larger embeddings and a tied head would answer each token with itself.
            is_embedding = name.endswith(("embed_tokens.weight", "wte.weight", "wpe.weight"))
            return drawn * float(shape[-1] ** -0.5) * (0.5 if is_embedding else 1.0)
        is_norm = name.endswith(".weight")
        return 1 + 0.1 * drawn if is_norm else 0.02 * drawn


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor a model has, by Hugging Face name."""
    return _gpt2_shapes(spec) if spec.family is Family.GPT2 else _rotary_shapes(spec)


def _rotary_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    matrices = {
        "self_attn.q_proj": (q_rows, hidden, spec.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, q_rows, spec.out_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if spec.qk_norm:
        norms |= {"self_attn.q_norm": spec.head_dim, "self_attn.k_norm": spec.head_dim}
    for layer in range(spec.num_layers):
        at = f"model.layers.{layer}."
        for name, (rows, columns, has_bias) in matrices.items():
            shapes[f"{at}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{at}{name}.bias"] = (rows,)
        for name, size in norms.items():
            shapes[f"{at}{name}.weight"] = (size,)
    return shapes


def _gpt2_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (spec.vocab_size, hidden),
        "transformer.wpe.weight": (spec.max_positions, hidden),
        "transformer.ln_f.weight": (hidden,),
        "transformer.ln_f.bias": (hidden,),
    }
    for layer in range(spec.num_layers):
        at = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes[f"{at}{norm}.weight"] = shapes[f"{at}{norm}.bias"] = (hidden,)
        matrices = {
            "attn.c_attn": (hidden, 3 * hidden),
            "attn.c_proj": (hidden, hidden),
            "mlp.c_fc": (hidden, inner),
            "mlp.c_proj": (inner, hidden),
        }
        for name, (rows, columns) in matrices.items():
            shapes[f"{at}{name}.weight"] = (rows, columns)
            shapes[f"{at}{name}.bias"] = (columns,)
    return shapes
