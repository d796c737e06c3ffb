"""Models that mix attention with linear or state-space layers. Keys as in ``config.json``."""

from kvfabric.catalog.model_entry import ModelEntry, class_default, published

_QWEN_HYBRID = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "tie_word_embeddings": False,
}
_QWEN_3_5 = _QWEN_HYBRID | {
    "mamba_ssm_dtype": "float32",
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "dtype": "bfloat16",
}
_KIMI_HYBRID = {
    "model_type": "kimi_linear",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "max_position_embeddings": 1048576,
    "tie_word_embeddings": False,
}
_MAMBA_2 = {
    "model_type": "nemotron_h",
    "conv_kernel": 4,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

HYBRID_MODELS = (
    ModelEntry(
        "qwen3-next-80b-a3b",
        _QWEN_HYBRID
        | {
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 32,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "vocab_size": 151936,
            "max_position_embeddings": 32768,
        },
        class_default("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3NextConfig"),
    ),
    ModelEntry(
        "qwen3.5-27b",
        _QWEN_3_5
        | {
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "linear_num_value_heads": 48,
        },
        published("Qwen/Qwen3.5-27B, text_config"),
    ),
    ModelEntry(
        "qwen3.5-397b-a17b",
        _QWEN_3_5
        | {
            "model_type": "qwen3_5_moe_text",
            "num_hidden_layers": 60,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 64,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 1024,
            "shared_expert_intermediate_size": 1024,
        },
        published("Qwen/Qwen3.5-397B-A17B, text_config"),
    ),
    ModelEntry(
        "jamba-v0.1",
        {
            "model_type": "jamba",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_dt_rank": 256,
            "mamba_expand": 2,
            "vocab_size": 65536,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
        },
        class_default("ai21labs/Jamba-v0.1", "JambaConfig"),
    ),
    ModelEntry(
        "nemotron-h-56b",
        _MAMBA_2
        | {
            "num_hidden_layers": 118,
            "hidden_size": 8192,
            "intermediate_size": 32768,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "attention_head_dim": 128,
            "hybrid_override_pattern": "M-M-M-" + 10 * "M*-M-M-M-M-" + "M-",
            "mamba_num_heads": 256,
            "ssm_state_size": 256,
            "max_position_embeddings": 8192,
        },
        published("nvidia/Nemotron-H-56B-Base-8K"),
    ),
    ModelEntry(
        "nemotron-3-nano-30b-a3b",
        _MAMBA_2
        | {
            "num_hidden_layers": 52,
            "hidden_size": 2688,
            "intermediate_size": 1856,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hybrid_override_pattern": 5 * "MEMEM*E" + "MEMEMEM*E" + "MEMEMEME",
            "mamba_num_heads": 64,
            "ssm_state_size": 128,
            "mamba_ssm_cache_dtype": "float32",
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "max_position_embeddings": 262144,
        },
        published("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    ),
    ModelEntry(
        "kimi-linear-48b-a3b",
        _KIMI_HYBRID
        | {
            "num_hidden_layers": 27,
            "hidden_size": 2304,
            "num_attention_heads": 32,
            "linear_attn_config": {
                "full_attn_layers": (4, 8, 12, 16, 20, 24, 27),
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        },
        published("moonshotai/Kimi-Linear-48B-A3B-Instruct"),
    ),
    ModelEntry(
        "kimi-k3",
        _KIMI_HYBRID
        | {
            "num_hidden_layers": 93,
            "hidden_size": 7168,
            "num_attention_heads": 96,
            "linear_attn_config": {
                "full_attn_layers": (*range(4, 93, 4), 93),
                "head_dim": 128,
                "num_heads": 96,
                "short_conv_kernel_size": 4,
            },
            "dtype": "bfloat16",
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
            },
        },
        published("moonshotai/Kimi-K3, text_config"),
    ),
)
