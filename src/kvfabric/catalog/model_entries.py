"""Dense models of the catalog. Keys as in ``config.json``."""

from kvfabric.catalog.model_entry import ModelEntry, class_default, published

_LLAMA_3 = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_QWEN_3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

# Layers of Nemotron-Super-49B in order: (layers, has attention, feed-forward multiple). Attention
# layers have 8 query heads per KV head.
_NEMOTRON_RUNS = (
    (1, True, 2.625),
    (5, True, 5.25),
    (2, False, 2.625),
    (3, True, 5.25),
    (1, False, 3.28125),
    (30, True, 5.25),
    (1, False, 1.3125),
    (2, False, 2.625),
    (1, False, 1.3125),
    (1, False, 5.25),
    (1, False, 1.3125),
    (1, False, 2.625),
    (3, False, 1.3125),
    (1, True, 5.25),
    (1, False, 1.3125),
    (2, False, 1.0),
    (1, False, 1.3125),
    (3, False, 1.0),
    (2, False, 1.3125),
    (2, False, 0.5),
    (2, False, 1.0),
    (2, False, 0.5),
    (1, False, 1.0),
    (2, False, 0.5),
    (9, True, 5.25),
)


def _searched_block(*, has_attention: bool, ffn_mult: float) -> dict[str, object]:
    attention: dict[str, object] = {"no_op": True}
    if has_attention:
        attention = {"no_op": False, "n_heads_in_group": 8}
    return {"attention": attention, "ffn": {"ffn_mult": ffn_mult, "no_op": False}}


DENSE_MODELS = (
    ModelEntry(
        "llama-3.1-8b",
        _LLAMA_3
        | {
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
        },
        published("meta-llama/Llama-3.1-8B"),
    ),
    ModelEntry(
        "llama-3.1-70b",
        _LLAMA_3
        | {
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
        },
        published("meta-llama/Llama-3.1-70B"),
    ),
    ModelEntry(
        "llama-3.1-405b",
        _LLAMA_3
        | {
            "num_hidden_layers": 126,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_attention_heads": 128,
        },
        published("meta-llama/Llama-3.1-405B"),
    ),
    ModelEntry(
        "nemotron-super-49b",
        {
            "model_type": "nemotron-nas",
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "block_configs": tuple(
                _searched_block(has_attention=has_attention, ffn_mult=ffn_mult)
                for num_layers, has_attention, ffn_mult in _NEMOTRON_RUNS
                for _ in range(num_layers)
            ),
        },
        published("nvidia/Llama-3_3-Nemotron-Super-49B-v1"),
    ),
    ModelEntry(
        "qwen3-0.6b",
        _QWEN_3
        | {
            "num_hidden_layers": 28,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "tie_word_embeddings": True,
        },
        published("Qwen/Qwen3-0.6B"),
    ),
    ModelEntry(
        "qwen3-8b",
        _QWEN_3
        | {
            "num_hidden_layers": 36,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
        },
        published("Qwen/Qwen3-8B"),
    ),
    ModelEntry(
        "qwen3-32b",
        _QWEN_3
        | {
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_attention_heads": 64,
        },
        published("Qwen/Qwen3-32B"),
    ),
    ModelEntry(
        "gpt2",
        {
            "model_type": "gpt2",
            "n_layer": 12,
            "n_head": 12,
            "n_embd": 768,
            "n_positions": 1024,
            "vocab_size": 50257,
            "tie_word_embeddings": True,
        },
        class_default("openai-community/gpt2", "GPT2Config"),
    ),
    ModelEntry(
        "phi-3-mini",
        {
            "model_type": "phi3",
            "num_hidden_layers": 32,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "sliding_window": None,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
        class_default("microsoft/Phi-3-mini-4k-instruct", "Phi3Config"),
    ),
    ModelEntry(
        "mistral-7b",
        {
            "model_type": "mistral",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": 4096,
            "vocab_size": 32000,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
        class_default("mistralai/Mistral-7B-v0.1", "MistralConfig"),
    ),
    ModelEntry(
        "gemma-2-2b",
        {
            "model_type": "gemma2",
            "num_hidden_layers": 26,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        class_default("google/gemma-2-2b", "Gemma2Config"),
    ),
    ModelEntry(
        "gemma-2-9b",
        {
            "model_type": "gemma2",
            "num_hidden_layers": 42,
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        published("google/gemma-2-9b"),
    ),
    ModelEntry(
        "gemma-3-12b",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 48,
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "sliding_window": 1024,
            "sliding_window_pattern": 6,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        class_default("google/gemma-3-12b-it (sizes published)", "Gemma3TextConfig"),
    ),
)
