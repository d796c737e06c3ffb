"""How positions are rotated into Q and K, in numbers; read from a ``config.json``.

The ``llama3`` scaling is that of Llama 3.1 (``config.json: rope_scaling``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvfabric.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretches long wavelengths by ``factor`` and blends between the two frequency bounds."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Base of the frequencies, and how they are scaled."""

    theta: float
    scaling: Llama3Scaling | None = None


def rope_from_config(config: Mapping[str, Any], *, where: str) -> RopeSpec:
    """Return the embedding a ``config.json`` asks for, in its old and its new spelling.

    Raises:
        UnsupportedError: for a ``rope_type`` other than ``default`` and ``llama3``.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeSpec(theta)
    if kind != "llama3":
        raise UnsupportedError(
            f"rope_type is {kind!r}", where=where, hint="The engine runs 'default' and 'llama3'"
        )
    return RopeSpec(
        theta,
        Llama3Scaling(
            float(scaling["factor"]),
            float(scaling["low_freq_factor"]),
            float(scaling["high_freq_factor"]),
            int(scaling["original_max_position_embeddings"]),
        ),
    )
