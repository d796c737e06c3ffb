"""Distributions of whole numbers: tokens of a prompt or an output, turns of a session."""

from dataclasses import dataclass

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.workload.limits import MAX_NUM_TOKENS, require_int, require_real


@dataclass(frozen=True, slots=True)
class ConstantLength:
    """Always ``value``."""

    value: int

    def __post_init__(self) -> None:
        """Refuse a value outside ``[1, MAX_NUM_TOKENS]``."""
        require_int(self.value, "value", low=1, high=MAX_NUM_TOKENS)


@dataclass(frozen=True, slots=True)
class UniformLength:
    """Each whole number in ``[minimum, maximum]`` alike."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        """Refuse an empty range or one outside ``[1, MAX_NUM_TOKENS]``."""
        _require_range(self.minimum, self.maximum)


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """``median * exp(sigma * normal)``, rounded, then clipped to ``[minimum, maximum]``."""

    median: float
    sigma: float
    minimum: int = 1
    maximum: int = MAX_NUM_TOKENS

    def __post_init__(self) -> None:
        """Refuse a median, spread or range that cannot be drawn from."""
        require_real(self.median, "median", low=1.0, high=float(MAX_NUM_TOKENS))
        require_real(self.sigma, "sigma", low=0.0, high=5.0)
        _require_range(self.minimum, self.maximum)


@dataclass(frozen=True, slots=True)
class EmpiricalLength:
    """Drawn with replacement from ``values``."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty list and values outside ``[1, MAX_NUM_TOKENS]``."""
        if not self.values:
            raise ConfigError("read an empty list", where="values", hint="Write at least one value")
        for idx, value in enumerate(self.values):
            require_int(value, f"values[{idx}]", low=1, high=MAX_NUM_TOKENS)


Length = ConstantLength | UniformLength | LognormalLength | EmpiricalLength


def _require_range(minimum: int, maximum: int) -> None:
    require_int(minimum, "minimum", low=1, high=MAX_NUM_TOKENS)
    require_int(maximum, "maximum", low=minimum, high=MAX_NUM_TOKENS)


def draw_lengths(length: Length, rng: np.random.Generator, count: int) -> list[int]:
    """Return ``count`` independent draws; a longer call starts with the draws of a shorter one."""
    match length:
        case ConstantLength():
            return [length.value] * count
        case UniformLength():
            drawn = rng.integers(length.minimum, length.maximum, size=count, endpoint=True)
        case LognormalLength():
            floats = length.median * np.exp(length.sigma * rng.standard_normal(count))
            drawn = np.clip(np.rint(floats), length.minimum, length.maximum).astype(np.int64)
        case EmpiricalLength():
            drawn = np.asarray(length.values)[rng.integers(0, len(length.values), size=count)]
    return [int(value) for value in drawn]


def largest_length(length: Length) -> int:
    """Return the largest value that a draw can give."""
    match length:
        case ConstantLength():
            return length.value
        case UniformLength() | LognormalLength():
            return length.maximum
        case EmpiricalLength():
            return max(length.values)
