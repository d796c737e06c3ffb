"""Rotary position embedding: inverse frequencies, and the cosines and sines of positions.

Source: Su et al., RoFormer (2021); the halves are rotated as in Llama's Hugging Face layout, and
frequencies are scaled as in Llama 3.1 where the model asks for it.
"""

import math

import torch
from torch import Tensor

from kvfabric.engine.rope_spec import Llama3Scaling, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Return radians per position, ``[head_dim / 2]`` in fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    return frequencies if rope.scaling is None else _llama3(frequencies, rope.scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_positions / wavelengths  # over the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0: stretched, 1: as it was
    return frequencies * (kept + (1 - kept) / scaling.factor)


def rotation(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of positions ``[tokens]``, each ``[tokens, 1, head_dim]``.

    The sines of the first half are negative, so that ``x * cos + swapped_halves(x) * sin`` rotates.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    cosines, sines = angles.cos(), angles.sin()
    cosines = torch.cat((cosines, cosines), -1)[:, None].to(dtype)
    return cosines, torch.cat((-sines, sines), -1)[:, None].to(dtype)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return heads ``[tokens, heads, head_dim]`` rotated to their positions."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cosines, swapped, sines)
