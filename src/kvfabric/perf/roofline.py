"""Step times from data-sheet peaks, stated efficiencies and fixed costs, exact in integers.

Fixed costs of a step, then the longer of matrix products and weight reads, then attention, then
all-reduces; routed experts read their weights, multiply and move their rows, each by itself.
Nothing overlaps but the two inside the one maximum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvfabric.catalog.gpus import Gpu
from kvfabric.errors import ConfigError
from kvfabric.perf.chip_efficiency import efficiency_of, fitted_to, is_measured
from kvfabric.perf.efficiency import VLLM_019, Efficiency
from kvfabric.perf.floor_sum import FloorSums, floor_sum, least_terms
from kvfabric.perf.work import (
    AttentionWork,
    ExpertWork,
    ModelWork,
    causal_pairs,
    expert_bytes_by_tokens,
    tokens_attended,
)
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape

_PS_PER_NS: Final = 1_000
_PS_PER_S: Final = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class _DecodeBatch:
    """Times in ps of decode steps with a fixed number of requests.

    A step with S tokens of context takes ``fixed_ps + per_token_ps * S`` plus, for each
    ``(most_tokens, window_ps)``, ``window_ps * min(S, most_tokens)``; those ascend.
    """

    fixed_ps: int
    per_token_ps: int
    windows: tuple[tuple[int, int], ...]


class RooflineModel:
    """A ``StepTimeModel`` of one worker: pure, but for coefficients kept per batch size.

    One step takes ``floor(ps / 1000)`` ns, where ps is an integer that is affine in the summed
    context of the decodes, with a knot where their mean context reaches an attention window.

    Simplifications, all assumed: the stages of a pipelined worker run one after the other and the
    hand-over between them is free; every decode has the mean context; tensor-parallel ranks lie
    in one NVLink domain; routing to experts is uniform and all ranks share every expert.
    """

    def __init__(self, work: ModelWork, gpu: Gpu, efficiency: Efficiency | None = None) -> None:
        """Round the coefficients once; refuse a GPU without what the work needs.

        Without an efficiency it is the chip's own.
        """
        self._work = work
        self._gpu_name = gpu.name
        self._efficiency = efficiency or efficiency_of(gpu.name)
        self._rates = _rates(work, gpu, self._efficiency)
        self._coefficients = _coefficients(work, self._rates, self._efficiency)
        self._batches: dict[int, _DecodeBatch] = {}
        self._sums: dict[int, FloorSums] = {}  # of batches that have run for many iterations

    @property
    def source(self) -> Source:
        """Return where the numbers come from."""
        is_own = self._efficiency == efficiency_of(self._gpu_name) and is_measured(self._gpu_name)
        is_assumed = self._work.pp > 1 or not is_own
        return Source(
            SourceKind.ASSUMED if is_assumed else SourceKind.DERIVED,
            f"roofline of {self._gpu_name}: data-sheet peaks x efficiencies"
            f" {fitted_to(self._gpu_name)}, fixed costs from {VLLM_019}"
            + (", stages in series" * (self._work.pp > 1)),
        )

    def mixed_step_ns(self, shape: StepShape) -> int:
        """Return the duration of one step; 0 for a step without work."""
        num_decodes = num_tokens = shape.num_decodes
        step_ps = self._context_ps(num_decodes, shape.context_tokens)
        for num_chunk_tokens, num_history_tokens in shape.prefill:
            num_tokens += num_chunk_tokens
            step_ps += self._chunk_ps(num_chunk_tokens, num_history_tokens)
        if num_tokens == 0:
            return 0
        step_ps += self._coefficients.linear_ps(num_tokens, num_decodes + len(shape.prefill))
        return step_ps // _PS_PER_NS

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        """Return the exact sum of ``mixed_step_ns`` over consecutive decode iterations."""
        if num_decodes == 0:
            return 0
        batch = self._batches.get(num_decodes) or self._batch(num_decodes)
        if not batch.windows:
            first_ps = batch.fixed_ps + batch.per_token_ps * context_tokens
            if num_iterations == 1:
                return first_ps // _PS_PER_NS
            sums = self._sums.get(num_decodes)
            if sums is None:
                sums = FloorSums(_PS_PER_NS, batch.per_token_ps * num_decodes)
                self._sums[num_decodes] = sums
            return sums.first(num_iterations, first_ps)
        return sum(
            floor_sum(count, _PS_PER_NS, slope, start)
            for count, slope, start in _pieces(batch, num_decodes, context_tokens, num_iterations)
        )

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        """Return the least j in [1, max_iterations] with ``decode_run_ns(j) >= elapsed_ns``.

        Returns ``max_iterations`` when even that many are done sooner. O(log elapsed_ns) per knot.
        """
        if num_decodes == 0:
            return max_iterations if elapsed_ns > 0 else 1
        batch = self._batch(num_decodes)
        if not batch.windows:
            slope = batch.per_token_ps * num_decodes
            start = batch.fixed_ps + batch.per_token_ps * context_tokens
            return min(max(1, least_terms(elapsed_ns, _PS_PER_NS, slope, start)), max_iterations)
        done, left_ns = 0, elapsed_ns
        for count, slope, start in _pieces(batch, num_decodes, context_tokens, max_iterations):
            needed = least_terms(left_ns, _PS_PER_NS, slope, start)
            if needed <= count:
                return max(1, done + needed)
            done += count
            left_ns -= floor_sum(count, _PS_PER_NS, slope, start)
        return max_iterations

    def _batch(self, num_decodes: int) -> _DecodeBatch:
        batch = self._batches.get(num_decodes)
        if batch is None:
            batch = self._coefficients.decode_batch(num_decodes)
            self._batches[num_decodes] = batch
        return batch

    def _context_ps(self, num_decodes: int, context_tokens: int) -> int:
        if num_decodes == 0:
            return 0
        batch = self._batch(num_decodes)
        return batch.per_token_ps * context_tokens + sum(
            window_ps * min(context_tokens, most) for most, window_ps in batch.windows
        )

    def _chunk_ps(self, num_tokens: int, num_history_tokens: int) -> int:
        """Return the attention of one prefill chunk: its products, or the cache read if longer."""
        flops = num_bytes = 0
        for part in self._work.attention:
            pairs = causal_pairs(num_tokens, num_history_tokens, part.window)
            flops += pairs * part.prefill_flops_per_pair
            attended = tokens_attended(num_tokens, num_history_tokens, part.window)
            num_bytes += attended * part.kv_bytes_per_token
        return max(
            _time_ps(flops, self._rates.attention_flops),
            _time_ps(num_bytes, self._rates.memory_bytes_per_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What the kernels reach, per second; products are wide in 16 bits whatever the weights."""

    matmul_flops: int
    wide_matmul_flops: int
    attention_flops: int
    memory_bytes_per_s: int
    all_reduce_bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coefficients:
    """Integer ps of everything that does not depend on the step.

    ``weights_ps`` reads the weights that every step needs. ``experts_ps[t]`` reads the routed
    experts that t tokens touch; the last entry holds beyond, and is all there is without experts.
    ``context_ps`` holds (window, ps per token attended to) for decodes.
    """

    step_ps: int
    request_ps: int
    token_ps: int
    matmul_token_ps: int
    head_request_ps: int
    weights_ps: int
    experts_ps: tuple[int, ...]
    context_ps: tuple[tuple[int | None, int], ...]

    def linear_ps(self, num_tokens: int, num_requests: int) -> int:
        """Return all of a step but attention; at least 1 ns."""
        matmul_ps = self.matmul_token_ps * num_tokens + self.head_request_ps * num_requests
        experts_ps = self.experts_ps[min(num_tokens, len(self.experts_ps) - 1)]
        return max(
            _PS_PER_NS,
            self.step_ps
            + self.request_ps * num_requests
            + self.token_ps * num_tokens
            + max(matmul_ps, self.weights_ps)
            + experts_ps,
        )

    def decode_batch(self, num_decodes: int) -> _DecodeBatch:
        """Return the coefficients of decode steps with this many requests."""
        windows = ((w * num_decodes, ps) for w, ps in self.context_ps if w is not None)
        return _DecodeBatch(
            fixed_ps=self.linear_ps(num_decodes, num_decodes),
            per_token_ps=sum(ps for window, ps in self.context_ps if window is None),
            windows=tuple(sorted(windows)),
        )


def _pieces(
    batch: _DecodeBatch, num_decodes: int, context_tokens: int, num_iterations: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (iterations, ps added per iteration, ps of the first) per affine piece of a run."""
    left, context = num_iterations, context_tokens
    while left > 0:
        start, slope, knots = batch.fixed_ps + batch.per_token_ps * context, batch.per_token_ps, []
        for most_tokens, window_ps in batch.windows:
            start += window_ps * min(context, most_tokens)
            if context < most_tokens:
                slope += window_ps
                knots.append(most_tokens)
        # A piece ends with the first iteration that has a window full.
        count = min(left, -(-(knots[0] - context) // num_decodes)) if knots else left
        yield count, slope * num_decodes, start
        left -= count
        context += count * num_decodes


def _rates(work: ModelWork, gpu: Gpu, efficiency: Efficiency) -> _Rates:
    if work.tp > 1 and not gpu.nvlink_bytes_per_s:
        raise ConfigError(
            f"tp {work.tp} on {gpu.name}, which has no NVLink",
            hint="Write tp 1, or name a GPU with NVLink",
        )
    # Without 8-bit tensor cores, 8-bit weights are widened and multiplied in 16 bits.
    matmul = gpu.fp8_flops if work.is_fp8_matmul and gpu.fp8_flops else gpu.bf16_flops
    return _Rates(
        matmul_flops=round(matmul * efficiency.matmul),
        wide_matmul_flops=round(gpu.bf16_flops * efficiency.matmul),
        attention_flops=round(gpu.bf16_flops * efficiency.attention),
        memory_bytes_per_s=round(gpu.memory_bandwidth * efficiency.memory),
        all_reduce_bytes_per_s=round((gpu.nvlink_bytes_per_s or 0) * efficiency.nvlink),
    )


def _coefficients(work: ModelWork, rates: _Rates, efficiency: Efficiency) -> _Coefficients:
    memory = rates.memory_bytes_per_s
    experts = work.experts
    routed = expert_bytes_by_tokens(experts) if experts else (0,)
    step_ns = (
        efficiency.host_step_ns
        + efficiency.layer_ns * work.num_layers
        + efficiency.all_reduce_ns * work.num_all_reduces
        + efficiency.expert_layer_ns * (experts.num_layers if experts else 0)
        + efficiency.latent_layer_ns * work.num_latent_layers
        + efficiency.index_layer_ns * work.num_index_layers
    )
    return _Coefficients(
        step_ps=step_ns * _PS_PER_NS,
        request_ps=efficiency.host_request_ns * _PS_PER_NS
        + _time_ps(work.state_bytes_per_request, memory),
        token_ps=_time_ps(work.activation_bytes_per_token, memory)
        + _all_reduce_ps(work, rates)
        + (_expert_token_ps(experts, rates) if experts else 0),
        matmul_token_ps=_time_ps(
            work.matmul_flops_per_token - work.latent_flops_per_token, rates.matmul_flops
        )
        + _time_ps(work.latent_flops_per_token, rates.wide_matmul_flops),
        head_request_ps=_time_ps(work.head_flops_per_request, rates.matmul_flops),
        weights_ps=_time_ps(work.dense_weight_bytes, memory),
        experts_ps=tuple(_time_ps(num_bytes, memory) for num_bytes in routed),
        context_ps=tuple((part.window, _context_token_ps(part, rates)) for part in work.attention),
    )


def _expert_token_ps(experts: ExpertWork, rates: _Rates) -> int:
    """Return the products and rows of one token in its routed experts.

    Products do not hide behind the weight reads: under skewed routing some experts multiply long
    after others have waited for memory. 8-bit weights are multiplied no faster than 16-bit ones.

    Source: measured kernels of aiconfigurator-core 0.12.0; see docs/explanation/accuracy.md.
    """
    return _time_ps(experts.matmul_flops_per_token, rates.wide_matmul_flops) + _time_ps(
        experts.row_bytes_per_token, rates.memory_bytes_per_s
    )


def _context_token_ps(part: AttentionWork, rates: _Rates) -> int:
    """Return the time of one context token of a decode: read from memory, or computed if longer."""
    return max(
        _time_ps(part.kv_bytes_per_token, rates.memory_bytes_per_s),
        _time_ps(part.decode_flops_per_pair, rates.attention_flops),
    )


def _all_reduce_ps(work: ModelWork, rates: _Rates) -> int:
    """Return the all-reduces of one token beyond their start.

    Source: ring or direct reduce-scatter and all-gather move 2 (tp - 1) / tp of the bytes per rank
    and direction (derived).
    """
    if work.num_all_reduces == 0:
        return 0
    num_bytes = 2 * (work.tp - 1) * work.all_reduce_bytes_per_token * work.num_all_reduces
    return _time_ps(num_bytes, work.tp * rates.all_reduce_bytes_per_s)


def _time_ps(amount: int, rate_per_s: int) -> int:
    """Return the ps that an amount takes at a rate, to the nearest."""
    return (amount * _PS_PER_S + rate_per_s // 2) // rate_per_s
