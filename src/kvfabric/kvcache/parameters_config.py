"""Parameter counts from a model's config, for the families whose layers are known in full.

Source: the tensor shapes of the families in transformers 5; checked against published totals.
Biases and norms are counted where they are known; what is left out is below 0.1 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvfabric.kvcache.geometry import LayerKind, LayerLayout
from kvfabric.kvcache.geometry_fields import ConfigFields
from kvfabric.kvcache.parameters import LayerParameters, ParameterCount

_PLAIN_TYPES = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3", "gemma", "gemma2"})
_PLAIN_TYPES |= {"gemma3_text", "granite", "gpt2", "nemotron-nas"}
_EXPERT_TYPES = frozenset(
    {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "glm4_moe", "minimax_m2"}
)
_EXPERT_TYPES |= {"llama4_text", "mimo_v2_flash"}
_LATENT_TYPES = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"})
_HYBRID_TYPES = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "jamba"})
COUNTED_TYPES = _PLAIN_TYPES | _EXPERT_TYPES | _LATENT_TYPES | _HYBRID_TYPES

# Families whose config class ties the output head to the embedding unless told otherwise.
_TIED_TYPES = frozenset({"gemma", "gemma2", "gemma3_text", "gpt2"})
_BIASED_QKV = frozenset({"qwen2", "qwen2_moe"})
_UNGATED_TYPES = frozenset({"gpt2", "nemotron_h"})


def count_parameters(fields: ConfigFields, layouts: Sequence[LayerLayout]) -> ParameterCount | None:
    """Return the parameters of a model, or None for a family that is not modelled.

    Also None when the config does not give the vocabulary.
    """
    vocab = fields.integer_or_none("vocab_size")
    if fields.model_type not in COUNTED_TYPES or vocab is None:
        return None
    experts = _experts(fields)
    embedding = (vocab + _learned_positions(fields)) * fields.hidden_size
    is_tied = fields.values.get("tie_word_embeddings", fields.model_type in _TIED_TYPES)
    return ParameterCount(
        embedding=embedding,
        output_head=0 if is_tied else vocab * fields.hidden_size,
        final_norm=fields.hidden_size,
        layers=tuple(
            _layer(fields, layout, layer, experts) for layer, layout in enumerate(layouts)
        ),
        num_experts=experts.num_experts if experts else 0,
        num_active_experts=experts.num_active if experts else 0,
    )


def _learned_positions(fields: ConfigFields) -> int:
    return fields.integer("n_positions") if fields.model_type == "gpt2" else 0


# ---- feed-forward ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Experts:
    num_experts: int
    num_active: int
    width: int
    shared_width: int


def _experts(fields: ConfigFields) -> _Experts | None:
    num_experts = fields.integer_or_none("num_experts", "num_local_experts", "n_routed_experts")
    if num_experts is None or num_experts == 1:
        return None
    num_active = fields.integer("num_experts_per_tok", "num_experts_per_token")
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    return _Experts(num_experts, num_active, width, _shared_width(fields, width))


def _shared_width(fields: ConfigFields, width: int) -> int:
    given = fields.integer_or_none(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"
    )
    if given is not None:
        return given
    if fields.model_type == "llama4_text":
        return width
    return fields.count("n_shared_experts") * width


def _layer(
    fields: ConfigFields, layout: LayerLayout, layer: int, experts: _Experts | None
) -> LayerParameters:
    mixer = _mixer(fields, layout)
    norms = _num_norms(fields) * fields.hidden_size
    if experts is not None and _has_experts(fields, layer):
        found = _expert_layer(fields, experts, mixer + norms)
    else:
        found = LayerParameters(dense=mixer + norms + _feed_forward(fields, layer))
    if not layout.is_latent:
        return found
    return replace(found, latent=mixer, replicated=_latent_shared(fields))


def _num_norms(fields: ConfigFields) -> int:
    if fields.model_type in {"gemma2", "gemma3_text", "gpt2"}:
        return 4  # around both parts; two norms with a bias each in GPT-2
    return 1 if fields.model_type == "nemotron_h" else 2


def _expert_layer(fields: ConfigFields, experts: _Experts, outside: int) -> LayerParameters:
    one = _gated(fields, experts.width) + _expert_bias(fields, experts.width)
    router = fields.hidden_size * experts.num_experts
    shared = _gated(fields, experts.shared_width)
    if fields.has("shared_expert_intermediate_size"):
        shared += fields.hidden_size  # the gate of the shared expert
    return LayerParameters(
        dense=outside + router + shared,
        experts=experts.num_experts * one,
        active_experts=experts.num_active * one,
    )


def _gated(fields: ConfigFields, width: int) -> int:
    """Return the weights of a feed-forward of this width: three matrices, or two without gate."""
    return (2 if fields.model_type in _UNGATED_TYPES else 3) * fields.hidden_size * width


def _expert_bias(fields: ConfigFields, width: int) -> int:
    return 2 * width + fields.hidden_size if fields.model_type == "gpt_oss" else 0


def _has_experts(fields: ConfigFields, layer: int) -> bool:
    if fields.has("hybrid_override_pattern"):
        return fields.text("hybrid_override_pattern")[layer] == "E"
    if fields.has("expert_layer_period"):
        return layer % fields.integer("expert_layer_period") == fields.count("expert_layer_offset")
    if isinstance(fields.values.get("moe_layer_freq"), Sequence):
        return bool(fields.per_layer("moe_layer_freq", fields.num_layers)[layer])
    if fields.has("interleave_moe_layer_step"):
        return (layer + 1) % fields.integer("interleave_moe_layer_step") == 0
    if fields.has("mlp_only_layers") and layer in fields.sequence("mlp_only_layers"):
        return False
    every = fields.integer_or_none("decoder_sparse_step", "moe_layer_freq") or 1
    return layer >= fields.count("first_k_dense_replace") and (layer + 1) % every == 0


def _feed_forward(fields: ConfigFields, layer: int) -> int:
    """Return the weights of the dense feed-forward of a layer."""
    if fields.has("block_configs"):
        return _block_feed_forward(fields, layer)
    if fields.has("hybrid_override_pattern"):
        is_dense = fields.text("hybrid_override_pattern")[layer] == "-"
        return _gated(fields, fields.integer("intermediate_size")) if is_dense else 0
    if fields.model_type == "gpt2":
        width = fields.integer_or_none("n_inner") or 4 * fields.hidden_size
        return _gated(fields, width) + width + fields.hidden_size
    return _gated(fields, fields.integer("intermediate_size_mlp", "intermediate_size"))


def _block_feed_forward(fields: ConfigFields, layer: int) -> int:
    """Return the feed-forward of one searched block: 2/3 of its multiple, rounded up to 256."""
    block = ConfigFields({"block": fields.sequence("block_configs")[layer]}, fields.where)
    multiple = block.section("block").section("ffn").values.get("ffn_mult")
    if not isinstance(multiple, int | float):
        return 0
    width = int(2 * multiple * fields.hidden_size / 3)
    return _gated(fields, -(-width // 256) * 256)


# ---- attention and state -----------------------------------------------------------------------


def _mixer(fields: ConfigFields, layout: LayerLayout) -> int:
    if layout.kind is LayerKind.STATE:
        return _state_mixer(fields)
    if layout.kind is LayerKind.NONE:
        return 0
    return _latent_mixer(fields, layout) if layout.is_latent else _head_mixer(fields, layout)


def _head_mixer(fields: ConfigFields, layout: LayerLayout) -> int:
    queries = layout.num_query_heads * layout.key_dim
    keys = layout.num_kv_heads * layout.key_dim
    values = layout.num_kv_heads * layout.value_dim
    output = layout.num_query_heads * layout.value_dim
    gate = queries if fields.model_type in _HYBRID_TYPES - {"nemotron_h", "jamba"} else 0
    weights = fields.hidden_size * (queries + gate + keys + values + output)
    if fields.model_type in _BIASED_QKV or fields.has("attention_bias"):
        weights += queries + keys + values
    if fields.model_type in {"gpt_oss", "gpt2"}:
        weights += fields.hidden_size
    if fields.model_type == "gpt2":
        weights += queries + keys + values
    if fields.model_type.startswith("qwen3") or fields.model_type == "gemma3_text":
        weights += 2 * layout.key_dim
    return weights


def _latent_mixer(fields: ConfigFields, layout: LayerLayout) -> int:
    latent, rotary = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    queries = layout.num_query_heads * layout.query_dim
    outputs = layout.num_query_heads * layout.output_dim
    nope = layout.num_query_heads * (layout.query_dim - rotary)
    query_rank = fields.integer_or_none("q_lora_rank")
    if query_rank is None:
        weights = fields.hidden_size * queries
    else:
        weights = query_rank * (fields.hidden_size + queries + 1)
    weights += fields.hidden_size * (latent + rotary + outputs) + latent
    weights += latent * (nope + outputs)
    return weights + _index_mixer(fields, query_rank or 0)


def _latent_shared(fields: ConfigFields) -> int:
    """Return the weights of latent attention that belong to no head, the index included."""
    latent, rotary = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    query_rank = fields.integer_or_none("q_lora_rank") or 0
    width = query_rank + latent + rotary
    return fields.hidden_size * width + query_rank + latent + _index_mixer(fields, query_rank)


def _index_mixer(fields: ConfigFields, query_rank: int) -> int:
    """Return the weights of the index of DeepSeek sparse attention."""
    index_dim = fields.integer_or_none("index_head_dim")
    if index_dim is None:
        return 0
    heads = fields.integer("index_n_heads")
    return query_rank * heads * index_dim + fields.hidden_size * (index_dim + heads) + 2 * index_dim


def _state_mixer(fields: ConfigFields) -> int:
    if fields.has("linear_num_value_heads"):
        return _gated_delta_mixer(fields)
    return _mamba2_mixer(fields) if fields.has("ssm_state_size") else _mamba1_mixer(fields)


def _gated_delta_mixer(fields: ConfigFields) -> int:
    value_heads = fields.integer("linear_num_value_heads")
    value_dim = fields.integer("linear_value_head_dim")
    keys = fields.integer("linear_num_key_heads") * fields.integer("linear_key_head_dim")
    values = value_heads * value_dim
    convolution = (2 * keys + values) * fields.integer("linear_conv_kernel_dim")
    inputs = 2 * keys + 2 * values + 2 * value_heads
    outside = 2 * value_heads + value_dim
    return fields.hidden_size * (inputs + values) + convolution + outside


def _mamba2_mixer(fields: ConfigFields) -> int:
    heads = fields.integer("mamba_num_heads")
    inner = heads * fields.integer("mamba_head_dim")
    groups = fields.integer("n_groups") * fields.integer("ssm_state_size")
    channels = inner + 2 * groups
    convolution = channels * (fields.integer("conv_kernel") + 1)
    return fields.hidden_size * (inner + channels + heads + inner) + convolution + 3 * heads + inner


def _mamba1_mixer(fields: ConfigFields) -> int:
    inner = fields.integer("mamba_expand") * fields.hidden_size
    state, rank = fields.integer("mamba_d_state"), fields.integer("mamba_dt_rank")
    convolution = inner * (fields.integer("mamba_d_conv") + 1)
    steps = inner * (rank + 2 * state) + rank * inner + inner
    norms = rank + 2 * state
    return 3 * fields.hidden_size * inner + convolution + steps + inner * (state + 1) + norms
