"""Step times measured as a whole on one machine, by batch and context, with nothing fitted.

Two grids: decode steps by batch size and context per request, prompts by chunk and history. Between
measured points times are linear in each of the two sizes, beyond the last they go on as between the
last two. Every step takes the same time for its control on top.

Several prompts count as one of as many tokens, with the history that gives as many pairs of a
token and one before it; it is negative for prompts without any, and times go on linearly. A step
that computes prompts and decodes takes::

    prefill(tokens of both, those pairs) + decode(batch, context) - decode(batch, first context)

since the weights are read once and attention comes on top, and no less than either alone. Source:
derived. Steps of aiconfigurator-core 0.12.0 (H100, Llama-3.1-70B TP8) are met within 2 % for
several prompts, which are up to 10 % long where they count as one, and 4 % for both kinds.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.perf.curve import FS_PER_NS
from kvfabric.perf.joint_attention import DecodeBatch
from kvfabric.perf.transfer_times import TransferTimes
from kvfabric.protocol.provenance import Source
from kvfabric.protocol.step import StepShape

RECORDED_ERROR: Final = (
    "recorded from the run itself mean TTFT -0.8 to +2.2 %, TPOT -9.6 to +8.3 %; recorded before it"
    " on a CPU that others use too, -51 to +52 % (SmolLM2, bench/bench_prediction.py)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What was measured, in ns.

    Attributes:
        batches: requests in a decode step, ascending, at least two sizes.
        contexts: tokens in the cache of each, ascending, at least two.
        decode_ns: by batch, then context.
        chunks: tokens of a prompt computed in a step, ascending, at least two.
        histories: tokens in the cache before them, ascending, at least two.
        prefill_ns: by chunk, then history.
        control_ns: from the end of a step to the start of the next, where nothing waits.
        source: which machine, model and dtype.
        transfers: of KV cache between two workers, if that was measured.
        known_error: how far such times are known to be off, in words.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_ns: tuple[tuple[int, ...], ...]
    chunks: tuple[int, ...]
    histories: tuple[int, ...]
    prefill_ns: tuple[tuple[int, ...], ...]
    control_ns: int
    source: Source
    transfers: TransferTimes | None = None
    known_error: str = RECORDED_ERROR

    def __post_init__(self) -> None:
        """Refuse grids with holes, and axes that do not ascend."""
        for rows, columns, grid in (
            ("batches", "contexts", self.decode_ns),
            ("chunks", "histories", self.prefill_ns),
        ):
            for name in (rows, columns):
                axis: tuple[int, ...] = getattr(self, name)
                if len(axis) < 2 or list(axis) != sorted(set(axis)) or axis[0] < 0:
                    raise ConfigError(
                        f"{name} are {list(axis)}", hint="Write two or more numbers that ascend"
                    )
            num_rows, num_columns = len(getattr(self, rows)), len(getattr(self, columns))
            if len(grid) != num_rows or any(len(row) != num_columns for row in grid):
                raise ConfigError(
                    f"times of {rows} and {columns} are no full grid",
                    hint=f"Write {num_rows} lists of {num_columns} times",
                )


def _at(axis: Sequence[int], values: Sequence[int], place: float) -> float:
    """Return the value at a place, linear between the two points around it or next to it."""
    i = min(max(bisect_right(axis, place), 1), len(axis) - 1)
    before, after = axis[i - 1], axis[i]
    share = (place - before) / (after - before)
    return values[i - 1] + share * (values[i] - values[i - 1])


class MeasuredStepModel:
    """A ``StepTimeModel`` of such tables; it follows them also where they fall as work grows."""

    def __init__(self, times: StepTimes) -> None:
        """Use measured times."""
        self._times = times
        self._batches: dict[int, DecodeBatch] = {}

    @property
    def source(self) -> Source:
        """Return where the numbers come from."""
        return self._times.source

    @property
    def known_error(self) -> str:
        """Return how far such times are known to be off, in words."""
        return self._times.known_error

    @property
    def transfers(self) -> TransferTimes | None:
        """Return what transfers take on the machine that was measured, if that is known."""
        return self._times.transfers

    def mixed_step_ns(self, shape: StepShape) -> int:
        """Return the duration of one step; 0 for a step without work."""
        num_decodes = shape.num_decodes
        num_tokens = twice_pairs = 0
        for chunk, before in shape.prefill:
            num_tokens += chunk
            twice_pairs += chunk * (2 * before + chunk)
        decode_ns = self.decode_run_ns(num_decodes, shape.context_tokens, 1)
        if not num_tokens:
            return decode_ns
        prefill_ns = self._prefill_ns(num_tokens, twice_pairs)
        if not num_decodes:
            return prefill_ns
        first = self._times.contexts[0]
        attention_ns = decode_ns - self.decode_run_ns(num_decodes, num_decodes * first, 1)
        both_ns = self._prefill_ns(num_tokens + num_decodes, twice_pairs) + attention_ns
        return max(prefill_ns, decode_ns, both_ns)

    def _prefill_ns(self, num_tokens: int, twice_pairs: int) -> int:
        """Return the time of prompt tokens with so many pairs, in halves, of tokens attended to."""
        times = self._times
        history = (twice_pairs / num_tokens - num_tokens) / 2
        by_chunk = [round(_at(times.histories, row, history)) for row in times.prefill_ns]
        return max(1, round(_at(times.chunks, by_chunk, num_tokens)) + times.control_ns)

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        """Return the exact sum of ``mixed_step_ns`` over consecutive decode iterations."""
        if num_decodes == 0:
            return 0
        return self._batch(num_decodes).run_ns(context_tokens, num_iterations)

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        """Return the least j in [1, max_iterations] with ``decode_run_ns(j) >= elapsed_ns``.

        Returns ``max_iterations`` when even that many are done sooner.
        """
        if num_decodes == 0:
            return max_iterations if elapsed_ns > 0 else 1
        batch = self._batch(num_decodes)
        return batch.iterations_until(context_tokens, elapsed_ns, max_iterations)

    def _batch(self, num_decodes: int) -> DecodeBatch:
        """Return the line over summed contexts for a batch size."""
        found = self._batches.get(num_decodes)
        if found is not None:
            return found
        times = self._times
        columns = zip(*times.decode_ns, strict=True)
        row = [max(1, round(_at(times.batches, column, num_decodes))) for column in columns]
        row = [time_ns + times.control_ns for time_ns in row]
        knots = [0, *times.contexts[1:-1]]
        ends = [*times.contexts[1:], times.contexts[-1] + 1]
        starts = [max(1, round(_at(times.contexts, row, knot))) * FS_PER_NS for knot in knots]
        after = [max(1, round(_at(times.contexts, row, end))) * FS_PER_NS for end in ends]
        slopes = [
            (stop - start) // ((end - knot) * num_decodes)
            for start, stop, knot, end in zip(starts, after, knots, ends, strict=False)
        ]
        sums = [knot * num_decodes for knot in knots]
        batch = self._batches[num_decodes] = DecodeBatch(num_decodes, sums, starts, slopes)
        return batch
