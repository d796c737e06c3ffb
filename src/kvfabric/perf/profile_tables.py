"""The measured operators of one model on one GPU, as data; how they add up stands in ``profile``.

Operator names are those of LLMServingSim's profiler: vLLM's attribute names, one call each.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.perf.attention_grid import AttentionGrid
from kvfabric.perf.curve import Curve
from kvfabric.perf.moe import ExpertTable
from kvfabric.protocol.provenance import Source

ONCE: Final = ("embedding", "final_layernorm")
PER_LAYER: Final = MappingProxyType(
    {"layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1}
)
DENSE_MLP: Final = ("gate_up_proj", "act_fn", "down_proj")
PER_REQUEST: Final = ("lm_head", "sampler")
OPTIONAL: Final = frozenset({"qk_norm"})  # only some families normalize queries and keys
TOKEN_OPERATORS: Final = (*ONCE, *PER_LAYER, *DENSE_MLP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTables:
    """Measured times of one rank, without communication.

    Attributes:
        model_name: the model that was measured.
        tp: tensor-parallel ranks that share the model.
        tokens: time by tokens in the step, per operator.
        requests: time by requests in the step, per operator.
        attention: time of one layer's attention.
        source: where the times come from.
        experts: time of one layer of routed experts, or None.
    """

    model_name: str
    tp: int
    tokens: Mapping[str, Curve]
    requests: Mapping[str, Curve]
    attention: AttentionGrid
    source: Source
    experts: ExpertTable | None = None

    def __post_init__(self) -> None:
        """Refuse unknown operators and missing ones, by name."""
        for found, known in ((self.tokens, TOKEN_OPERATORS), (self.requests, PER_REQUEST)):
            for name in found:
                check_operator(name, known)
        require_operators(self.tokens, (*ONCE, *PER_LAYER))
        require_operators(self.requests, PER_REQUEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """What a profile of one layer does not say about the whole model.

    Attributes:
        num_layers: layers, all with the measured attention.
        hidden_size: width of the residual stream.
        vocab_size: tokens in the vocabulary; the logits that ranks gather.
        num_expert_layers: layers with routed experts in place of the dense feed-forward.
        num_experts: routed experts of such a layer.
        num_active_experts: routed experts that one token uses.
        dtype_bytes: bytes per element of activations and logits.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    num_expert_layers: int = 0
    num_experts: int = 0
    num_active_experts: int = 0
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        """Refuse sizes below 1, and experts in more layers than there are."""
        for name in ("num_layers", "hidden_size", "vocab_size", "dtype_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}", hint="Write a count from 1")
        if not 0 <= self.num_expert_layers <= self.num_layers:
            raise ConfigError(
                f"{self.num_expert_layers} layers with experts of {self.num_layers}",
                hint="Write 0 up to the number of layers",
            )


def profiled_model(geometry: KVGeometry) -> ProfiledModel:
    """Return the sizes of a model whose layers all have the same attention.

    Raises:
        ConfigError: several kinds of layers, which one measured attention cannot stand for, or a
            config without vocabulary.
    """
    if len(geometry.groups) != 1:
        raise ConfigError(
            f"{geometry.model_type} mixes {len(geometry.groups)} kinds of layers",
            hint="A profile holds one attention; use perf kind roofline",
        )
    if geometry.vocab_size is None:
        raise ConfigError(f"{geometry.model_type} without vocab_size", hint="Add it to the config")
    counts = geometry.parameters
    return ProfiledModel(
        num_layers=geometry.num_layers,
        hidden_size=geometry.hidden_size,
        vocab_size=geometry.vocab_size,
        num_expert_layers=sum(bool(layer.experts) for layer in counts.layers) if counts else 0,
        num_experts=counts.num_experts if counts else 0,
        num_active_experts=counts.num_active_experts if counts else 0,
        dtype_bytes=geometry.dtype_bytes,
    )


def check_operator(name: str, known: Iterable[str], *, where: str = "") -> None:
    """Refuse an operator that has no place in a step."""
    if name not in known:
        raise ConfigError(
            f"unknown operator {name!r}", where=where, hint=f"Known here: {', '.join(known)}"
        )


def require_operators(found: Mapping[str, Curve], names: Iterable[str], *, where: str = "") -> None:
    """Refuse a profile without one of these operators, but for those only some models have."""
    missing = [name for name in names if name not in found and name not in OPTIONAL]
    if missing:
        raise ConfigError(
            f"the profile lacks {', '.join(missing)}",
            where=where,
            hint="Add the rows of these operators",
        )
