"""Tiny models of every family with random weights, and plain generation to compare with."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvfabric.engine.decoder import Decoder
from kvfabric.engine.model_spec import ModelSpec, spec_from_config
from kvfabric.engine.random_weights import RandomWeights
from kvfabric.engine.torch_executor import TorchExecutor
from kvfabric.engine.weights import DecoderWeights, load_weights

_ROTARY = {
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 131,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama", **_ROTARY},
    "llama-biased-rope3": {
        "model_type": "llama",
        **_ROTARY,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"model_type": "qwen2", **_ROTARY, "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", **_ROTARY, "tie_word_embeddings": True},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 48,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 512,
        "vocab_size": 131,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
}
BLOCK_SIZE = 4
SEED = 2  # greedy outputs are varied: see test_tiny_models_say_different_things


def tiny(name: str, seed: int = SEED) -> tuple[ModelSpec, DecoderWeights]:
    """Return one of CONFIGS with random fp32 weights on the CPU."""
    spec = spec_from_config(CONFIGS[name])
    source = RandomWeights(spec, seed)
    return spec, load_weights(spec, source, dtype=torch.float32, device=torch.device("cpu"))


def tiny_executor(name: str, *, num_blocks: int = 64, kv_dtype: str | None = None) -> TorchExecutor:
    """Return an executor of a tiny model."""
    spec, weights = tiny(name)
    return TorchExecutor(
        spec, weights, num_blocks=num_blocks, block_size=BLOCK_SIZE, kv_dtype=kv_dtype
    )


class DenseAttention:
    """Attention of one sequence over itself, K and V repeated per head: no cache, no blocks."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return causal attention."""
        assert layer >= 0
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        return out[0].transpose(0, 1).reshape(q.shape[2], -1)


@torch.inference_mode()
def dense_logits(spec: ModelSpec, weights: DecoderWeights, ids: list[int]) -> Tensor:
    """Return the logits of every position, ``[tokens, vocab]``, all computed at once."""
    decoder = Decoder(spec, weights)
    hidden = decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), DenseAttention())
    return decoder.logits(hidden)


def plain_greedy(
    spec: ModelSpec, weights: DecoderWeights, prompt: tuple[int, ...], count: int
) -> list[int]:
    """Return greedy tokens, everything computed again for each of them."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(dense_logits(spec, weights, ids)[-1].argmax()))
    return ids[len(prompt) :]
