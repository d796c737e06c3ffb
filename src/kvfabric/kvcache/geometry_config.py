"""From a model's config mapping to its KV geometry.

The keys decide, not the name of the model: a latent rank means latent attention wherever it stands.
What is not understood is refused by ``geometry_keys``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import KVGeometry, LayerGroup, LayerKind, LayerLayout
from kvfabric.kvcache.geometry_fields import ConfigFields
from kvfabric.kvcache.geometry_keys import refuse_unknown_attention
from kvfabric.kvcache.geometry_states import state_layout
from kvfabric.kvcache.parameters_config import count_parameters

_NESTED = ("text_config", "language_config")
_SHARED_KEYS = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")
_WEIGHT_FORMATS = {"float-quantized": "fp8", "int-quantized": "int8"}
_WEIGHT_FORMATS |= {"mxfp4-pack-quantized": "mxfp4"}
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

# Source: vLLM 0.19 keeps 128 one-byte key elements and one 4-byte scale per token and layer for the
# index of DeepSeek-V3.2 (132 bytes; 48,068 against 40,016 bytes per token in 61 layers).
_INDEX_SCALE_BYTES = 4

# Layers between two full-attention layers, counting the full one, when the config has no list;
# 0 means that every layer slides. Source: the config classes of transformers 5.
_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2}
_WINDOW_PERIOD |= {"mistral": 0, "mixtral": 0, "phi3": 0}

_KIND_BY_NAME = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    "linear_attention": LayerKind.STATE,
    "mamba": LayerKind.STATE,
}
_KIND_BY_LETTER = {"*": LayerKind.FULL, "M": LayerKind.STATE, "-": LayerKind.NONE}
_KIND_BY_LETTER |= {"E": LayerKind.NONE}


def geometry_from_config(config: Mapping[str, object], *, where: str) -> KVGeometry:
    """Return the KV geometry of a model from its Hugging Face config.

    Args:
        config: the parsed ``config.json``; the language part may be nested.
        where: the file or catalog entry, for messages.

    Raises:
        ConfigError: a key is missing or does not hold what it should.
        UnsupportedError: the attention is not understood; names the keys.
    """
    fields = _language_part(config, where)
    refuse_unknown_attention(fields)
    layouts = _layouts(fields)
    return KVGeometry(
        model_type=fields.model_type,
        num_layers=fields.num_layers,
        hidden_size=fields.hidden_size,
        num_attention_heads=fields.num_query_heads,
        vocab_size=fields.integer_or_none("vocab_size"),
        max_context_tokens=fields.integer_or_none("max_position_embeddings", "n_positions"),
        groups=_grouped(layouts),
        dtype_bytes=_dtype_bytes(fields),
        weight_format=_weight_format(fields),
        parameters=count_parameters(fields, layouts),
        notes=_notes(fields),
    )


def _language_part(config: Mapping[str, object], where: str) -> ConfigFields:
    outer = ConfigFields(config, where)
    for key in _NESTED:
        if outer.has(key):
            inner = outer.section(key)
            shared = {name: config[name] for name in _SHARED_KEYS if name in config}
            return replace(inner, values=shared | dict(inner.values))
    return outer


def _grouped(layouts: Sequence[LayerLayout]) -> tuple[LayerGroup, ...]:
    layers: dict[LayerLayout, list[int]] = {}
    for layer, layout in enumerate(layouts):
        layers.setdefault(layout, []).append(layer)
    return tuple(LayerGroup(layout, tuple(found)) for layout, found in layers.items())


def _dtype_bytes(fields: ConfigFields) -> int:
    name = fields.text("torch_dtype") or fields.text("dtype", "bfloat16")
    if name not in _DTYPE_BYTES:
        raise UnsupportedError(
            f"unknown element type {name!r}",
            where=fields.where,
            hint=f"Write one of {', '.join(_DTYPE_BYTES)}",
        )
    return _DTYPE_BYTES[name]


def _weight_format(fields: ConfigFields) -> str:
    if not fields.has("quantization_config"):
        return "fp32" if _dtype_bytes(fields) == 4 else "bf16"
    method = fields.section("quantization_config")
    packed = method.text("format") or method.text("quant_method")
    return _WEIGHT_FORMATS.get(packed, packed)


def _notes(fields: ConfigFields) -> tuple[str, ...]:
    notes = []
    if fields.has("index_head_dim"):
        notes.append("the index of the sparse attention is counted beside the KV cache")
    if fields.has("sparse_attention_config"):
        notes.append("the index cache of the sparse attention is not counted")
    if fields.has("attention_k_eq_v"):
        notes.append("full-attention layers project K and V alike; both are counted as stored")
    return tuple(notes)


# ---- layouts -----------------------------------------------------------------------------------


def _layouts(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Return the layout of every layer, by the first key that describes the layers."""
    for key, describe in _DESCRIPTIONS.items():
        if fields.has(key) or (fields.model_type, key) in _IMPLIED:
            return describe(fields)
    return (_attention(fields),) * fields.num_layers


def _attention(fields: ConfigFields) -> LayerLayout:
    return _latent(fields) if fields.has("kv_lora_rank") else _grouped_heads(fields)


def _grouped_heads(
    fields: ConfigFields, *, heads_key: str = "num_key_value_heads", head_dim: int | None = None
) -> LayerLayout:
    query_heads = fields.num_query_heads
    key_dim = fields.head_dim if head_dim is None else head_dim
    value_dim = fields.integer_or_none("v_head_dim") or key_dim
    return LayerLayout(
        kind=LayerKind.FULL,
        num_query_heads=query_heads,
        num_kv_heads=_checked_kv_heads(fields, fields.integer_or_none(heads_key) or query_heads),
        key_dim=key_dim,
        value_dim=value_dim,
        query_dim=key_dim,
        output_dim=value_dim,
    )


def _checked_kv_heads(fields: ConfigFields, kv_heads: int) -> int:
    if fields.num_query_heads % kv_heads:
        raise ConfigError(
            f"{fields.num_query_heads} query heads cannot share {kv_heads} KV heads evenly",
            where=fields.where,
            hint="Check 'num_attention_heads' and 'num_key_value_heads'",
        )
    return kv_heads


def _latent(fields: ConfigFields) -> LayerLayout:
    rotary = fields.integer("qk_rope_head_dim")
    index_dim = fields.integer_or_none("index_head_dim")
    return LayerLayout(
        kind=LayerKind.FULL,
        num_query_heads=fields.num_query_heads,
        num_kv_heads=1,
        key_dim=fields.integer("kv_lora_rank") + rotary,
        query_dim=fields.integer("qk_nope_head_dim") + rotary,
        output_dim=fields.integer("v_head_dim"),
        is_latent=True,
        index_bytes=index_dim + _INDEX_SCALE_BYTES if index_dim else 0,
        index_dim=index_dim * fields.count("index_n_heads") if index_dim else 0,
        index_top_tokens=fields.count("index_topk") if index_dim else 0,
    )


def _windowed(layout: LayerLayout, kind: LayerKind, window_tokens: int) -> LayerLayout:
    return replace(layout, kind=kind, window_tokens=window_tokens)


def _sliding(fields: ConfigFields) -> LayerLayout:
    return _windowed(_attention(fields), LayerKind.SLIDING, fields.integer("sliding_window"))


def _of_kind(fields: ConfigFields, kind: LayerKind) -> LayerLayout:
    if kind is LayerKind.FULL:
        return _full(fields)
    if kind is LayerKind.SLIDING:
        return _sliding(fields)
    if kind is LayerKind.CHUNKED:
        return _windowed(_attention(fields), kind, fields.integer("attention_chunk_size"))
    return state_layout(fields) if kind is LayerKind.STATE else LayerLayout(kind=kind)


def _full(fields: ConfigFields) -> LayerLayout:
    """Return a full layer where the config gives such layers a shape of their own (Gemma 4)."""
    head_dim = fields.integer_or_none("global_head_dim")
    if head_dim is None or fields.has("kv_lora_rank"):
        return _attention(fields)
    own = "num_global_key_value_heads"
    heads_key = own if fields.has(own) else "num_key_value_heads"
    return _grouped_heads(fields, heads_key=heads_key, head_dim=head_dim)


def _from_kinds(fields: ConfigFields, kinds: Sequence[LayerKind]) -> tuple[LayerLayout, ...]:
    by_kind = {kind: _of_kind(fields, kind) for kind in dict.fromkeys(kinds)}
    return tuple(by_kind[kind] for kind in kinds)


def _periodic(fields: ConfigFields, other: LayerKind, period: int) -> tuple[LayerLayout, ...]:
    """Return layers of kind ``other`` with every ``period``-th one full (0: none is)."""
    kinds = [
        LayerKind.FULL if period and (layer + 1) % period == 0 else other
        for layer in range(fields.num_layers)
    ]
    return _from_kinds(fields, kinds)


# ---- one function per key that describes the layers --------------------------------------------


def _by_block_configs(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read one mapping per layer, as an architecture search leaves them (Nemotron)."""
    blocks = fields.per_layer("block_configs", fields.num_layers)
    return tuple(_block_layout(fields, block) for block in blocks)


def _block_layout(fields: ConfigFields, block: object) -> LayerLayout:
    where = f"{fields.where}: block_configs"
    if not isinstance(block, Mapping):
        raise ConfigError(f"a block is {block!r}", where=where, hint="Write a mapping")
    attention = ConfigFields(block, where).section("attention")
    if attention.has("no_op") or attention.has("replace_with_linear"):
        return LayerLayout(kind=LayerKind.NONE)
    unknown = [
        key for key in ("window_length", "sparsify", "num_sink_tokens") if attention.has(key)
    ]
    if unknown:
        raise UnsupportedError(f"{unknown[0]!r} is not modelled", where=attention.where)
    kv_heads = fields.num_query_heads // attention.integer("n_heads_in_group")
    return replace(_grouped_heads(fields), num_kv_heads=_checked_kv_heads(fields, kv_heads))


def _by_hybrid_layer_pattern(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read 1 for a sliding layer with a shape of its own and 0 for a full one (MiMo)."""
    key_dim = fields.integer("swa_head_dim")
    value_dim = fields.integer_or_none("swa_v_head_dim") or key_dim
    sliding = LayerLayout(
        kind=LayerKind.SLIDING,
        num_query_heads=fields.integer_or_none("swa_num_attention_heads") or fields.num_query_heads,
        num_kv_heads=fields.integer("swa_num_key_value_heads"),
        key_dim=key_dim,
        value_dim=value_dim,
        query_dim=key_dim,
        output_dim=value_dim,
        window_tokens=fields.integer("sliding_window"),
    )
    full = _attention(fields)
    pattern = fields.per_layer("hybrid_layer_pattern", fields.num_layers)
    return tuple(sliding if entry else full for entry in pattern)


def _by_letters(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read one letter per layer: ``*`` attention, ``M`` state space, ``-`` and ``E`` neither."""
    letters = fields.text("hybrid_override_pattern")
    unknown = sorted(set(letters) - set(_KIND_BY_LETTER))
    if unknown or len(letters) != fields.num_layers:
        raise UnsupportedError(
            f"'hybrid_override_pattern' has {len(letters)} layers and unknown letters {unknown}",
            where=fields.where,
            hint=f"Write {fields.num_layers} letters of {' '.join(_KIND_BY_LETTER)}",
        )
    return _from_kinds(fields, [_KIND_BY_LETTER[letter] for letter in letters])


def _by_attention_period(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read how often an attention layer comes among state-space layers (Jamba)."""
    period, offset = fields.integer("attn_layer_period"), fields.count("attn_layer_offset")
    kinds = [
        LayerKind.FULL if layer % period == offset else LayerKind.STATE
        for layer in range(fields.num_layers)
    ]
    return _from_kinds(fields, kinds)


def _by_linear_attention(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read the numbers of the full layers, counted from 1 (Kimi Linear)."""
    full = set(fields.section("linear_attn_config").sequence("full_attn_layers"))
    kinds = [
        LayerKind.FULL if layer + 1 in full else LayerKind.STATE
        for layer in range(fields.num_layers)
    ]
    return _from_kinds(fields, kinds)


def _by_layer_types(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read one name per layer."""
    names = fields.per_layer("layer_types", fields.num_layers)
    unknown = [name for name in names if name not in _KIND_BY_NAME]
    if unknown:
        raise UnsupportedError(
            f"unknown layer type {unknown[0]!r} in 'layer_types'",
            where=fields.where,
            hint=f"Known: {', '.join(_KIND_BY_NAME)}",
        )
    return _from_kinds(fields, [_KIND_BY_NAME[str(name)] for name in names])


def _by_full_interval(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read how often a full layer comes among linear ones (Qwen3-Next; 4 unless given)."""
    interval = fields.integer_or_none("full_attention_interval") or 4
    return _periodic(fields, LayerKind.STATE, interval)


def _by_chunk(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read chunked local layers: those with rotary positions (Llama 4; 3 of 4 unless listed)."""
    if not fields.has("no_rope_layers"):
        interval = fields.integer_or_none("no_rope_layer_interval") or 4
        return _periodic(fields, LayerKind.CHUNKED, interval)
    has_rope = fields.per_layer("no_rope_layers", fields.num_layers)
    return _from_kinds(fields, [LayerKind.CHUNKED if rope else LayerKind.FULL for rope in has_rope])


def _by_window(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read a window without a list of layers: the model type says which layers slide."""
    if fields.values.get("use_sliding_window") is False:
        return _from_kinds(fields, [LayerKind.FULL] * fields.num_layers)
    if isinstance(fields.values["sliding_window"], Sequence):
        return _by_window_list(fields)
    if fields.has("use_sliding_window"):
        first = fields.count("max_window_layers")
        kinds = [
            LayerKind.SLIDING if layer >= first else LayerKind.FULL
            for layer in range(fields.num_layers)
        ]
        return _from_kinds(fields, kinds)
    period = fields.integer_or_none("sliding_window_pattern")
    if period is None and fields.model_type not in _WINDOW_PERIOD:
        raise UnsupportedError(
            f"'sliding_window' without 'layer_types' in model type {fields.model_type!r}",
            where=fields.where,
            hint="Add 'layer_types' with one entry per layer",
        )
    return _periodic(
        fields, LayerKind.SLIDING, _WINDOW_PERIOD[fields.model_type] if period is None else period
    )


def _by_window_list(fields: ConfigFields) -> tuple[LayerLayout, ...]:
    """Read windows that repeat over the layers; null means full attention."""
    windows = fields.sequence("sliding_window")
    layout = _attention(fields)
    period = [
        layout
        if window is None
        else _windowed(layout, LayerKind.SLIDING, fields.checked("sliding_window", window, least=1))
        for window in windows
    ]
    return tuple(period[layer % len(period)] for layer in range(fields.num_layers))


_DESCRIPTIONS: dict[str, Callable[[ConfigFields], tuple[LayerLayout, ...]]] = {
    "block_configs": _by_block_configs,
    "hybrid_layer_pattern": _by_hybrid_layer_pattern,
    "hybrid_override_pattern": _by_letters,
    "attn_layer_period": _by_attention_period,
    "linear_attn_config": _by_linear_attention,
    "layer_types": _by_layer_types,
    "full_attention_interval": _by_full_interval,
    "attention_chunk_size": _by_chunk,
    "sliding_window": _by_window,
}
_IMPLIED = frozenset({("qwen3_next", "full_attention_interval")})
