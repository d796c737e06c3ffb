"""Measured attention times on a grid of prefill and decode together."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final, NamedTuple

from kvfabric.errors import ConfigError
from kvfabric.perf.curve import Curve


class AttentionPoint(NamedTuple):
    """What one attention kernel works on.

    Attributes:
        chunk: prompt tokens computed in the step, all requests together.
        history: tokens of those prompts in the cache already, summed.
        decodes: requests that decode.
        context: tokens in the cache of each decode.
    """

    chunk: int
    history: int
    decodes: int
    context: int


Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_Index = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class AttentionGrid:
    """Time in fs of one layer's attention on a full grid of ``AttentionPoint``.

    Attributes:
        axes: values of chunk, history, decodes and context; each starts at 0 and goes on.
        times_fs: one per point, the last axis fastest.
    """

    axes: Axes
    times_fs: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse axes that do not span a grid, and a number of times that is not its size."""
        size = 1
        for name, axis in zip(AttentionPoint._fields, self.axes, strict=True):
            if len(axis) < 2 or axis[0] != 0 or any(b <= a for a, b in pairwise(axis)):
                raise ConfigError(
                    f"attention axis {name} {list(axis)[:4]}",
                    hint="Give 0 and larger values, ascending",
                )
            size *= len(axis)
        if len(self.times_fs) != size:
            raise ConfigError(f"{len(self.times_fs)} attention times", hint=f"Give {size}")

    def decode_times_fs(self, num_decodes: int) -> list[int]:
        """Return the times of decodes without prefill, one per value of the context axis."""
        _, _, decodes, context = self.axes
        alone = self.times_fs[: len(decodes) * len(context)]
        return [
            Curve(decodes, alone[column :: len(context)]).at(num_decodes)
            for column in range(len(context))
        ]


def complete_grid(samples: Mapping[AttentionPoint, int], axes: Axes) -> AttentionGrid:
    """Return the grid over ``axes`` from measured points, its missing corners filled.

    A point without decodes has no context, one without a chunk no history, one without either
    takes no time; context 0 takes the time of the first context above. A batch too large to measure
    continues the line of the two smaller numbers of decodes, else of the two smaller contexts,
    histories or chunks, never below 0. Points off the axes are left out.

    Args:
        samples: time in fs by point.
        axes: values of chunk, history, decodes and context; 0 is added to each.

    Raises:
        ConfigError: a point that cannot be filled; names it.
    """
    chunk, history, decodes, context = (tuple(sorted({0, *axis})) for axis in axes)
    filler = _Filler(samples, (chunk, history, decodes, context))
    every = product(*(range(len(axis)) for axis in (chunk, history, decodes, context)))
    times = tuple(filler.time_fs((i, j, k, m)) for i, j, k, m in every)
    return AttentionGrid((chunk, history, decodes, context), times)


# Axes along which a missing point continues a line, best first, each with the first index that has
# two points before it: decodes, context, history, chunk.
_EXTENDED: Final = ((2, 2), (3, 3), (1, 2), (0, 3))


class _Filler:
    """Times by index into the axes; each one missing is computed once."""

    def __init__(self, samples: Mapping[AttentionPoint, int], axes: Axes) -> None:
        self._samples, self._axes = samples, axes
        self._known: dict[_Index, int | None] = {}

    def time_fs(self, index: _Index) -> int:
        time = self._find(index)
        if time is None:
            point = self._point(index)
            raise ConfigError(
                f"no attention time for {point.chunk} prompt tokens after {point.history} with"
                f" {point.decodes} decodes at {point.context}",
                hint="Measure it, or two points before it on one axis",
            )
        return time

    def _point(self, index: _Index) -> AttentionPoint:
        return AttentionPoint(*(axis[i] for axis, i in zip(self._axes, index, strict=True)))

    def _find(self, index: _Index) -> int | None:
        chunk, history, decodes, context = index
        if not chunk and not decodes:
            return 0
        index = (chunk, history if chunk else 0, decodes, max(1, context) if decodes else 0)
        if index not in self._known:
            time = self._samples.get(self._point(index))
            self._known[index] = self._extended(index) if time is None else time
        return self._known[index]

    def _extended(self, index: _Index) -> int | None:
        for axis, least in _EXTENDED:
            if index[axis] < least:
                continue
            nearer, farther = (self._find(_moved(index, axis, back)) for back in (1, 2))
            if nearer is not None and farther is not None:
                x2, x1, x0 = self._axes[axis][index[axis] - 2 : index[axis] + 1]
                return max(0, nearer + (nearer - farther) * (x0 - x1) // (x1 - x2))
        return None


def _moved(index: _Index, axis: int, back: int) -> _Index:
    moved = list(index)
    moved[axis] -= back
    return (moved[0], moved[1], moved[2], moved[3])
