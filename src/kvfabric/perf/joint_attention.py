"""Attention of a whole step from one joint look-up, and what runs of decodes add up to."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from kvfabric.perf.attention_grid import AttentionGrid
from kvfabric.perf.curve import FS_PER_NS
from kvfabric.perf.floor_sum import floor_sum, least_terms


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Steps with a fixed number of decodes, in fs by their summed context: affine between knots.

    ``knots`` are summed contexts, ascending from 0; a step at or above ``knots[i]`` takes
    ``starts[i]`` and ``slopes[i]`` for every token above it.
    """

    num_decodes: int
    knots: list[int]
    starts: list[int]
    slopes: list[int]

    def step_ns(self, context_tokens: int) -> int:
        """Return one step, rounded down."""
        i = bisect_right(self.knots, context_tokens) - 1
        start = self.starts[i] + self.slopes[i] * (context_tokens - self.knots[i])
        return start // FS_PER_NS

    def pieces(self, context_tokens: int, num_iterations: int) -> Iterator[tuple[int, int, int]]:
        """Yield (iterations, fs added per iteration, fs of the first) per affine piece of a run."""
        knots, n, left = self.knots, self.num_decodes, num_iterations
        i = bisect_right(knots, context_tokens) - 1
        while left > 0:
            start = self.starts[i] + self.slopes[i] * (context_tokens - knots[i])
            count = left
            if i + 1 < len(knots):
                count = min(left, -((context_tokens - knots[i + 1]) // n))
            if count > 0:
                yield count, self.slopes[i] * n, start
            left -= count
            context_tokens += count * n
            i += 1

    def run_ns(self, context_tokens: int, num_iterations: int) -> int:
        """Return the ns of consecutive steps, each rounded down before they are added."""
        knots, n = self.knots, self.num_decodes
        i = bisect_right(knots, context_tokens) - 1
        if i + 1 == len(knots) or context_tokens + n * (num_iterations - 1) < knots[i + 1]:
            slope = self.slopes[i]
            start = self.starts[i] + slope * (context_tokens - knots[i])
            if slope >= 0:
                return floor_sum(num_iterations, FS_PER_NS, slope * n, start)
        total_ns = 0
        for count, slope, start in self.pieces(context_tokens, num_iterations):
            total_ns += _sum_ns(count, slope, start)
        return total_ns

    def iterations_until(self, context_tokens: int, elapsed_ns: int, max_iterations: int) -> int:
        """Return the least j in [1, max_iterations] with ``run_ns(j) >= elapsed_ns``, else that."""
        done, left_ns = 0, elapsed_ns
        for count, slope, start in self.pieces(context_tokens, max_iterations):
            needed = _least_count(left_ns, count, slope, start)
            if needed is not None:
                return max(1, done + needed)
            done += count
            left_ns -= _sum_ns(count, slope, start)
        return max_iterations


class JointAttention:
    """Attention of all layers of a step, linear in each of four sizes."""

    def __init__(self, grid: AttentionGrid, num_layers: int) -> None:
        self._grid, self._num_layers = grid, num_layers
        self._times = [float(time * num_layers) for time in grid.times_fs]
        context_width = len(grid.axes[3])
        decode_width = len(grid.axes[2]) * context_width
        self._strides = (len(grid.axes[1]) * decode_width, decode_width, context_width)

    def decode_batch(self, num_decodes: int, linear_fs: int) -> DecodeBatch:
        """Return steps of decodes alone, on top of ``linear_fs``."""
        context = self._grid.axes[3]
        starts = [
            linear_fs + self._num_layers * time for time in self._grid.decode_times_fs(num_decodes)
        ]
        knots = [num_decodes * length for length in context]
        slopes = [
            _towards_zero(starts[i + 1] - starts[i], knots[i + 1] - knots[i])
            for i in range(len(knots) - 1)
        ]
        # Beyond the last measured context the last line goes on, unless it falls.
        slopes.append(max(0, slopes[-1]))
        return DecodeBatch(num_decodes, knots, starts, slopes)

    def joint_fs(self, chunk: float, history: float, decodes: float, context: float) -> float:
        """Return the time in fs; beyond an axis its last line goes on."""
        times, (chunk_stride, history_stride, decode_stride) = self._times, self._strides
        chunk_axis, history_axis, decode_axis, context_axis = self._grid.axes
        i, ti = _bracket(chunk_axis, chunk)
        j, tj = _bracket(history_axis, history)
        k, tk = _bracket(decode_axis, decodes)
        m, tm = _bracket(context_axis, context)
        base = i * chunk_stride + j * history_stride + k * decode_stride + m
        by_chunk = []
        for chunk_base in (base, base + chunk_stride):
            by_history = []
            for corner in (chunk_base, chunk_base + history_stride):
                low, high = times[corner], times[corner + decode_stride]
                low += (times[corner + 1] - low) * tm
                high += (times[corner + decode_stride + 1] - high) * tm
                by_history.append(low + (high - low) * tk)
            low, high = by_history
            by_chunk.append(low + (high - low) * tj)
        low, high = by_chunk
        return low + (high - low) * ti


def _bracket(axis: tuple[int, ...], value: float) -> tuple[int, float]:
    """Return the interval a value lies in, the last one beyond the end, and its place there."""
    i = min(bisect_right(axis, value) - 1, len(axis) - 2)
    return i, (value - axis[i]) / (axis[i + 1] - axis[i])


def _towards_zero(rise: int, width: int) -> int:
    return rise // width if rise >= 0 else -(-rise // width)


def _sum_ns(count: int, slope: int, start: int) -> int:
    """Return the ns of ``count`` steps, the i-th of ``start + slope * i`` fs."""
    if slope < 0:
        return floor_sum(count, FS_PER_NS, -slope, start + slope * (count - 1))
    return floor_sum(count, FS_PER_NS, slope, start)


def _least_count(limit_ns: int, count: int, slope: int, start: int) -> int | None:
    """Return the least number of steps, up to ``count``, that take ``limit_ns``, or None."""
    if slope >= 0:
        needed = least_terms(limit_ns, FS_PER_NS, slope, start)
        return needed if needed <= count else None
    if _sum_ns(count, slope, start) < limit_ns:
        return None
    return bisect_left(range(count), limit_ns, key=lambda j: _sum_ns(j, slope, start))
