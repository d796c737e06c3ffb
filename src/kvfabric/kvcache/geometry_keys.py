"""Which config keys are understood: an attention that is not fully understood is refused."""

import re

from kvfabric.errors import UnsupportedError
from kvfabric.kvcache.geometry_fields import ConfigFields

# A key with one of these words may change what is cached.
_ATTENTION_WORD = re.compile(
    r"attn|attention|window|chunk|kv|lora|index|mla|sparse|linear|mamba|ssm|swa|layer_types"
    r"|pattern|block_config|compress|recurrent|rnn|conv|quer|hybrid|state|head|cross"
)

# Read by this package.
_READ_KEYS = """
attention_chunk_size attention_head_dim attn_layer_offset attn_layer_period attn_output_gate
block_configs conv_kernel expand full_attention_interval global_head_dim head_dim
hybrid_layer_pattern hybrid_override_pattern index_head_dim index_n_heads index_topk kv_lora_rank
layer_types linear_attn_config linear_conv_kernel_dim linear_head_dim linear_key_head_dim
linear_num_heads linear_num_key_heads linear_num_value_heads linear_value_head_dim mamba_d_conv
mamba_d_state mamba_dt_rank mamba_expand mamba_head_dim mamba_num_heads mamba_ssm_cache_dtype
mamba_ssm_dtype max_window_layers mlp_layer_types n_groups n_head no_rope_layer_interval
no_rope_layers num_attention_heads num_global_key_value_heads num_key_value_heads q_lora_rank
qk_nope_head_dim qk_rope_head_dim sliding_window sliding_window_pattern sparse_attention_config
ssm_state_size swa_head_dim swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim
use_sliding_window v_head_dim
"""

# Known not to change what is cached per token: biases, scales, gates, kernels, query selection.
_HARMLESS_KEYS = """
_attn_implementation activation_situ_linear_beta add_full_attention_sink_bias
add_swa_attention_sink_bias attention_bias attention_dropout attention_k_eq_v attention_multiplier
attention_output_gate attention_value_scale attn_logit_softcapping attn_pdrop attn_res_block_size
chunk_size chunk_size_feed_forward decoder_sparse_step eoa_token_index ignore_index
indexer_rope_interleave mamba_conv_bias mamba_hidden_act mamba_proj_bias mla_use_nope
mla_use_output_gate output_attentions output_hidden_states pruned_heads qk_head_dim
query_pre_attn_scalar reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights
sliding_window_size swa_rope_theta use_bidirectional_attention use_conv_bias use_mamba_kernels
use_mambapy
"""

# Further keys that a config of an unknown model type may carry and still be a plain transformer.
_PLAIN_KEYS = """
_name_or_path _source activation_function architectures attention_bias auto_map bos_token_id dtype
embd_pdrop eos_token_id expert_layer_offset expert_layer_period experts_per_token
first_k_dense_replace hidden_act hidden_activation hidden_size id2label initializer_range
intermediate_size label2id layer_norm_eps layer_norm_epsilon max_position_embeddings mlp_bias
mlp_only_layers model_max_length model_type moe_intermediate_size moe_layer_freq n_embd n_group
n_inner n_layer n_positions n_routed_experts n_shared_experts norm_eps norm_topk_prob num_experts
num_experts_per_tok num_experts_per_token num_hidden_layers num_local_experts
num_nextn_predict_layers num_shared_experts original_max_position_embeddings output_router_logits
pad_token_id partial_rotary_factor pretraining_tp quantization_config resid_pdrop rms_norm_eps
rope_parameters rope_scaling rope_theta routed_scaling_factor router_aux_loss_coef scoring_func
shared_expert_intermediate_size tie_word_embeddings topk_group topk_method torch_dtype
transformers_version use_bias use_cache use_qk_norm vocab_size
"""

_PLAIN = frozenset(f"{_READ_KEYS} {_HARMLESS_KEYS} {_PLAIN_KEYS} num_kv_shared_layers".split())

# Model types whose attention was checked key by key; nested text configs go by their own type.
_KNOWN_TYPES = """
deepseek_v2 deepseek_v3 deepseek_v32 gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text glm4_moe
glm_moe_dsa gpt2 gpt_oss granite granitemoe jamba kimi_k2 kimi_k25 kimi_linear llama llama4
llama4_text minimax_m2 minimax_m3 mimo_v2_flash mistral mixtral nemotron-nas nemotron_h phi phi3
qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next step3p7
"""
KNOWN_MODEL_TYPES = frozenset(_KNOWN_TYPES.split())


def refuse_unknown_attention(fields: ConfigFields) -> None:
    """Refuse a config whose cache is not fully understood.

    Raises:
        UnsupportedError: names the keys (or the model type) that nothing here knows.
    """
    unknown = _unknown_keys(fields)
    if unknown:
        named = (
            f"of model type {fields.model_type!r}" if fields.model_type else "without model type"
        )
        raise UnsupportedError(
            f"cannot tell what the attention caches: unknown key {', '.join(map(repr, unknown))} "
            f"{named}",
            where=fields.where,
            hint="This model is not supported; a guess could be wrong by a large factor",
        )
    if fields.count("num_kv_shared_layers"):
        raise UnsupportedError(
            "layers that share the cache of another ('num_kv_shared_layers') are not modelled",
            where=fields.where,
        )


def _unknown_keys(fields: ConfigFields) -> list[str]:
    """Return the keys nothing here knows: those about attention if any, else all others.

    A known model type may carry any key that has nothing to do with attention.
    """
    said = sorted(key for key in fields.values if fields.has(key) and key not in _PLAIN)
    about_attention = [key for key in said if _ATTENTION_WORD.search(key)]
    if about_attention or fields.model_type in KNOWN_MODEL_TYPES:
        return about_attention
    return said
