"""Constant state of linear-attention and state-space layers, in bytes per request and layer.

Each layer keeps the last inputs of a short convolution, in the model's element type, and a
recurrent state, in the type the config names for it. Source: the state shapes of vLLM 0.19, checked
against the attention block sizes it logs (Qwen3-Next 544 tokens, Qwen3.5-27B 784 tokens).
"""

from kvfabric.errors import UnsupportedError
from kvfabric.kvcache.geometry import LayerKind, LayerLayout
from kvfabric.kvcache.geometry_fields import ConfigFields

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_MODEL_BYTES = 2


def state_layout(fields: ConfigFields) -> LayerLayout:
    """Return the layout of a state layer.

    Raises:
        UnsupportedError: the config describes none of the known kinds.
    """
    return LayerLayout(kind=LayerKind.STATE, state_bytes=_state_bytes(fields))


def _state_bytes(fields: ConfigFields) -> int:
    if fields.has("linear_num_value_heads"):
        return _gated_delta_bytes(fields)
    if fields.has("linear_attn_config") or fields.has("linear_num_heads"):
        return _kimi_delta_bytes(fields)
    if fields.has("ssm_state_size"):
        return _mamba2_bytes(fields)
    if fields.has("mamba_d_state"):
        return _mamba1_bytes(fields)
    raise UnsupportedError(
        f"cannot tell the state of the linear layers of model type {fields.model_type!r}",
        where=fields.where,
    )


def _recurrent_bytes(fields: ConfigFields) -> int:
    name = fields.text("mamba_ssm_dtype") or fields.text("mamba_ssm_cache_dtype")
    return _BYTES.get(name, _MODEL_BYTES)


def _gated_delta_bytes(fields: ConfigFields) -> int:
    """Return the state of a gated delta network (Qwen3-Next)."""
    key_dim, value_dim = (
        fields.integer("linear_key_head_dim"),
        fields.integer("linear_value_head_dim"),
    )
    value_heads = fields.integer("linear_num_value_heads")
    channels = 2 * fields.integer("linear_num_key_heads") * key_dim + value_heads * value_dim
    convolution = channels * (fields.integer("linear_conv_kernel_dim") - 1)
    recurrent = value_heads * key_dim * value_dim
    return convolution * _MODEL_BYTES + recurrent * _recurrent_bytes(fields)


def _kimi_delta_bytes(fields: ConfigFields) -> int:
    """Return the state of Kimi delta attention: three convolutions and a 4-byte matrix per head."""
    if fields.has("linear_attn_config"):
        linear = fields.section("linear_attn_config")
        heads, head_dim = linear.integer("num_heads"), linear.integer("head_dim")
        kernel = linear.integer("short_conv_kernel_size")
    else:
        heads, head_dim = fields.integer("linear_num_heads"), fields.integer("linear_head_dim")
        kernel = fields.integer("linear_conv_kernel_dim")
    convolution = 3 * heads * head_dim * (kernel - 1)
    return convolution * _MODEL_BYTES + heads * head_dim * head_dim * _BYTES["float32"]


def _mamba2_bytes(fields: ConfigFields) -> int:
    """Return the state of a Mamba-2 mixer."""
    inner = fields.integer("mamba_num_heads") * fields.integer("mamba_head_dim")
    state = fields.integer("ssm_state_size")
    channels = inner + 2 * fields.integer("n_groups") * state
    convolution = channels * (fields.integer("conv_kernel") - 1)
    return convolution * _MODEL_BYTES + inner * state * _recurrent_bytes(fields)


def _mamba1_bytes(fields: ConfigFields) -> int:
    """Return the state of a Mamba mixer."""
    inner = fields.integer("mamba_expand") * fields.hidden_size
    convolution = inner * (fields.integer("mamba_d_conv") - 1)
    recurrent = inner * fields.integer("mamba_d_state") * _recurrent_bytes(fields)
    return convolution * _MODEL_BYTES + recurrent
