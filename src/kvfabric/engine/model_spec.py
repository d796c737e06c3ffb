"""What a decoder-only transformer is made of, in numbers; read from a Hugging Face ``config.json``.

What is not supported is refused by the name of its key: a model that almost fits would run, and
answer nonsense.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvfabric.engine.rope_spec import RopeSpec, rope_from_config
from kvfabric.errors import ConfigError, UnsupportedError


class Family(Enum):
    """Model families, as ``model_type`` names them."""

    LLAMA = "llama"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    GPT2 = "gpt2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of one model.

    Attributes:
        family: decides the names of the tensors.
        max_positions: longest sequence the model was made for, tokens.
        rope: rotary position embedding; None for learned positions (GPT-2).
        layer_norm: LayerNorm with a bias and gelu (GPT-2) instead of RMSNorm and a gated SiLU.
        qkv_bias: whether Q, K and V projections have a bias.
        out_bias: whether the attention's output projection has one.
        mlp_bias: whether the MLP's projections have one.
        qk_norm: whether Q and K of each head are RMS-normalized before rotation (Qwen3).
        tied_embeddings: the output projection is the embedding.
        eos_token_ids: tokens that end an output.
    """

    family: Family
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope: RopeSpec | None
    layer_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse shapes that no model has."""
        for name in (
            "num_layers",
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_positions",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="It must be 1 or more")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.num_heads} attention heads do not divide into {self.num_kv_heads} KV heads",
                hint="num_attention_heads must be a multiple of num_key_value_heads",
            )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes of K and V that one token leaves in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


def spec_from_config(config: Mapping[str, Any], *, where: str = "config.json") -> ModelSpec:
    """Return the shape that a ``config.json`` describes.

    Raises:
        UnsupportedError: a family or a feature that the engine does not run.
        ConfigError: a key that is missing or makes no sense.
    """
    model_type = config.get("model_type")
    try:
        family = Family(model_type)
    except ValueError:
        known = ", ".join(member.value for member in Family)
        raise UnsupportedError(
            f"model_type is {model_type!r}", where=where, hint=f"The engine runs {known}"
        ) from None
    try:
        return _gpt2(config, where) if family is Family.GPT2 else _rotary(family, config, where)
    except KeyError as error:
        raise ConfigError(f"key {error.args[0]!r} is missing", where=where) from None


def _refuse_unless(
    config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]], where: str
) -> None:
    for key, values in allowed.items():
        if key in config and config[key] not in values:
            wanted = " or ".join(repr(value) for value in values)
            raise UnsupportedError(
                f"{key} is {config[key]!r}", where=where, hint=f"The engine runs {wanted}"
            )


def _rotary(family: Family, config: Mapping[str, Any], where: str) -> ModelSpec:
    _refuse_unless(
        config,
        {
            "hidden_act": ("silu",),
            "use_sliding_window": (False,),
            "partial_rotary_factor": (1, 1.0, None),
            "quantization_config": (None,),
        },
        where,
    )
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    bias = bool(config.get("attention_bias", False))
    return ModelSpec(
        family=family,
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        rope=rope_from_config(config, where=where),
        qkv_bias=bias or family is Family.QWEN2,
        out_bias=bias and family is not Family.QWEN2,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family is Family.QWEN3,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        eos_token_ids=eos_ids(config),
    )


def _gpt2(config: Mapping[str, Any], where: str) -> ModelSpec:
    _refuse_unless(
        config,
        {
            "activation_function": ("gelu_new",),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        },
        where,
    )
    return ModelSpec(
        family=Family.GPT2,
        num_layers=config["n_layer"],
        hidden_size=config["n_embd"],
        num_heads=config["n_head"],
        num_kv_heads=config["n_head"],
        head_dim=config["n_embd"] // config["n_head"],
        intermediate_size=config.get("n_inner") or 4 * config["n_embd"],
        vocab_size=config["vocab_size"],
        max_positions=config["n_positions"],
        norm_eps=config["layer_norm_epsilon"],
        rope=None,
        layer_norm=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
        eos_token_ids=eos_ids(config),
    )


def eos_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end tokens that a config names: none, one or several."""
    value = config.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
