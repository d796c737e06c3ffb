"""Parameter counts of a model, and the bytes its weights take on each rank of a worker."""

from dataclasses import dataclass

from kvfabric.errors import UnsupportedError
from kvfabric.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer.

    Attributes:
        dense: read for every token: attention or state mixer, norms, router, dense and shared
            feed-forward.
        experts: all routed experts together.
        active_experts: the routed experts that one token uses.
        latent: of ``dense``, the products of latent attention.
        replicated: of ``latent``, what no head has for itself: every tensor-parallel rank holds it.
    """

    dense: int
    experts: int = 0
    active_experts: int = 0
    latent: int = 0
    replicated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of a language model without multi-token-prediction and vision parts.

    Attributes:
        embedding: the token embedding (and learned positions); one row of it is read per token.
        output_head: the projection to the vocabulary; 0 when tied to the embedding.
        final_norm: the last normalization.
        layers: one entry per layer.
        num_experts: routed experts per layer; 0 for a dense model.
        num_active_experts: routed experts used per token.
    """

    embedding: int
    output_head: int
    final_norm: int
    layers: tuple[LayerParameters, ...]
    num_experts: int = 0
    num_active_experts: int = 0

    @property
    def total(self) -> int:
        """Return all parameters."""
        return self._outside_layers + sum(layer.dense + layer.experts for layer in self.layers)

    @property
    def active(self) -> int:
        """Return the parameters multiplied for one token: all but the embedding's look-up.

        A tied embedding counts, as it is the output head too.
        """
        head = self.output_head or self.embedding
        return (
            head
            + self.final_norm
            + sum(layer.dense + layer.active_experts for layer in self.layers)
        )

    @property
    def active_with_embedding(self) -> int:
        """Return ``active`` and an untied embedding, as some publishers count."""
        return self.active + (self.embedding if self.output_head else 0)

    @property
    def _outside_layers(self) -> int:
        return self.embedding + self.output_head + self.final_norm


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored.

    Attributes:
        name: as written by users.
        bits_per_32: bits that 32 quantized weights take, their scales included.
        experts_only: only routed experts are quantized when the model has any.

    Embedding and output head stay in two bytes in every quantized format: vLLM 0.19 needs 8.49 GiB
    for Llama-3.1-8B in fp8, which is 6.98e9 layer weights of one byte and 1.05e9 of two.
    """

    name: str
    bits_per_32: int
    experts_only: bool = False

    @property
    def is_quantized(self) -> bool:
        """Return whether layer weights take less than two bytes."""
        return self.bits_per_32 < 16 * 32


# int4: 4 bits and a 16-bit scale per 128 weights (GPTQ and AWQ with group size 128).
# mxfp4: 4 bits and an 8-bit scale per 32 weights (OCP Microscaling Formats specification 1.0).
_FORMATS = (
    WeightFormat("bf16", 512),
    WeightFormat("fp16", 512),
    WeightFormat("fp32", 1024),
    WeightFormat("fp8", 256),
    WeightFormat("int8", 256),
    WeightFormat("int4", 132),
    WeightFormat("mxfp4", 136, experts_only=True),
)
WEIGHT_FORMATS = {weight_format.name: weight_format for weight_format in _FORMATS}


def weight_format(name: str, *, where: str = "") -> WeightFormat:
    """Return how weights of this format are stored.

    Raises:
        UnsupportedError: no such format is known.
    """
    if name not in WEIGHT_FORMATS:
        raise UnsupportedError(
            f"unknown weight format {name!r}",
            where=where,
            hint=f"Write one of {', '.join(WEIGHT_FORMATS)}",
        )
    return WEIGHT_FORMATS[name]


def weight_bytes(parameters: ParameterCount, stored: WeightFormat) -> int:
    """Return the bytes of the whole model's weights."""
    outside = parameters.embedding + parameters.output_head + parameters.final_norm
    layers = sum(_layer_bytes(parameters, layer, stored) for layer in parameters.layers)
    return layers + outside * _outside_bytes(stored)


def rank_weight_bytes(
    parameters: ParameterCount, stored: WeightFormat, *, tp: int, layers: range
) -> int:
    """Return the weight bytes of one tensor-parallel rank that holds these layers.

    The first pipeline rank holds the embedding; the last one the output head, which is a copy of
    the embedding when the two are tied. What the heads of latent attention share is whole on every
    rank (vLLM: ``ReplicatedLinear``). Norms and repeated KV heads (tp above their number) are split
    like all the rest, which is low by less than 1 %.
    """
    outside = 0
    num_layers = len(parameters.layers)
    is_first, is_last = layers.start == 0, layers.stop == num_layers
    if is_first:
        outside += parameters.embedding
    if is_last:
        outside += parameters.output_head + parameters.final_norm
    if is_last and not is_first and not parameters.output_head:
        outside += parameters.embedding
    inside = sum(_layer_bytes(parameters, parameters.layers[i], stored) for i in layers)
    whole = replicated_bytes(parameters, stored, layers=layers)
    return ceil_div(inside - whole + outside * _outside_bytes(stored), tp) + whole


def replicated_bytes(parameters: ParameterCount, stored: WeightFormat, *, layers: range) -> int:
    """Return the weight bytes of these layers that every tensor-parallel rank holds."""
    found = (LayerParameters(dense=parameters.layers[i].replicated) for i in layers)
    return sum(_layer_bytes(parameters, layer, stored) for layer in found)


def _outside_bytes(stored: WeightFormat) -> int:
    return 2 if stored.is_quantized else stored.bits_per_32 // (8 * 32)


def _layer_bytes(parameters: ParameterCount, layer: LayerParameters, stored: WeightFormat) -> int:
    if stored.experts_only and parameters.num_experts:
        return 2 * layer.dense + _stored_bytes(layer.experts, stored)
    return _stored_bytes(layer.dense + layer.experts, stored)


def _stored_bytes(num_weights: int, stored: WeightFormat) -> int:
    return ceil_div(num_weights * stored.bits_per_32, 8 * 32)
