"""The text of ``kvfabric simulate``; the same run gives the same bytes."""

from collections.abc import Iterator, Sequence

from kvfabric.app.fleet_words import roles
from kvfabric.app.layout import STAGES, fold, ms, number, table
from kvfabric.export.limits import not_modelled, stated_error
from kvfabric.kvcache.resharding import LatentSenders
from kvfabric.metrics.latency import TtftSplit
from kvfabric.metrics.percentiles import LatencyDistribution
from kvfabric.plan.measured import Figure, MeasuredComparison
from kvfabric.plan.pool import PoolRequest, TierRequest, found_in_words
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.simulate import SimulatedRun
from kvfabric.plan.step_log import WorkerUse
from kvfabric.plan.verdict import Verdict
from kvfabric.serving.decode_choice import DecodePolicy
from kvfabric.units import NS_PER_S, format_bytes, format_rate


def render_run(run: SimulatedRun, verdicts: Sequence[Verdict]) -> str:
    """Return the text of a run."""
    parts = [
        run.request.name,
        *_fleet_lines(run),
        f"Load: {run.request.workload.name}, {len(run.request.workload.requests):,} in all",
        "",
        _latency_table(run),
        _stage_table(run),
        *_totals(run),
        "",
        *(_comparison_table(comparison) for comparison in run.comparisons),
        "Verdict",
        *(f"- {verdict.text}" for verdict in verdicts),
        "",
        f"Step times: {run.fleet.model.source}.",
        f"Their error: {stated_error(run.fleet.model)}.",
        f"Does not model: {'; '.join(not_modelled(run.request))}.",
        *(f"Note: {note}." for note in (*run.notes, *run.summary.warnings)),
    ]
    return "\n".join(fold(part) for part in parts) + "\n"


def _fleet_lines(run: SimulatedRun) -> Iterator[str]:
    request, scheduler = run.request, run.fleet.scheduler
    yield (
        f"{request.model_name} on {_gpus(request)}: {roles(request.workers)}, seed {request.seed}"
    )
    pace = "asynchronous" if request.workers.async_scheduling else "synchronous"
    decode = run.fleet.own_decode
    decode_blocks = "" if decode is None else f" (decode: {decode.scheduler.num_blocks:,})"
    yield (
        f"Each: {scheduler.num_blocks:,} KV blocks{decode_blocks} of {scheduler.block_size} tokens,"
        " steps of at"
        f" most {scheduler.max_num_seqs:,} requests and {scheduler.max_num_batched_tokens:,}"
        f" tokens, {pace} scheduling"
    )
    if request.moves_as_measured:
        yield "KV cache moves as measured, each transfer as if alone"
    if run.result.fabric is not None:
        handoff = ""
        if request.workers.num_decode:
            handoff = (
                f"; hand-off {request.handoff.mode.value.replace('_', ' ')},"
                f" {request.handoff.reservation.value.replace('_', ' ')}{_unusual(request)}"
            )
        rate = format_rate(request.network.nic_rate_bps)
        yield f"Fabric: {run.result.name}, {rate} per GPU{handoff}"
    if request.kv_pool is not None and run.result.run.pool is not None:
        yield f"KV pool: {_pool(request.kv_pool)}"


def _unusual(request: PlanRequest) -> str:
    """Return who sends and who receives where that is not the default."""
    words = ""
    if request.handoff.senders is not LatentSenders.ALL:
        words = f", latents from one rank ({request.handoff.senders.value})"
    if request.decode_choice is not DecodePolicy.LEAST_LOADED:
        words += f", receivers {request.decode_choice.value.replace('_', ' ')}"
    return words


def _pool(pool: PoolRequest) -> str:
    """Return the tiers of a pool and when they are used."""
    tiers = [f"{_tier(pool.host)} of host memory per server"]
    if pool.storage is not None:
        tiers.append(f"{_tier(pool.storage)} of storage")
    words = [
        pool.placement.value,
        f"fetch {pool.fetch_mode.value}",
        f"write {pool.write_policy.value}",
    ]
    if pool.fetch_stripes > 1:
        words.append(f"from up to {pool.fetch_stripes} servers at once")
    if pool.hands_back:
        words.append("decode hands back")
    return f"{', '.join(tiers)}; {', '.join(words).replace('_', ' ')}"


def _tier(tier: TierRequest) -> str:
    return f"{format_bytes(tier.capacity_bytes)} at {format_bytes(tier.read_bytes_per_s)}/s"


def _gpus(request: PlanRequest) -> str:
    count = request.workers.num_gpus
    if request.gpu is None:
        return f"{count:,} GPU{'s' if count > 1 else ''}"
    return f"{count:,} x {request.gpu.name}"


def _latency_table(run: SimulatedRun) -> str:
    summary = run.summary
    rows = [
        ["TTFT, client", *_distribution(summary.ttft)],
        ["TTFT, engine", *_distribution(run.engine_ttft)],
        ["TPOT", *_distribution(summary.tpot)],
        ["ITL", *_distribution(run.itl)],
        ["E2E", *_distribution(summary.e2e)],
    ]
    title = "Latencies (ms; client: from arrival, engine: from when it reads the request)"
    return table(title, ("", "mean", "p50", "p90", "p99", "samples"), rows)


def _distribution(latencies: LatencyDistribution) -> list[str]:
    values = (latencies.mean_ns, latencies.p50_ns, latencies.p90_ns, latencies.p99_ns)
    return [*map(_fine_ms, values), f"{latencies.num_samples:,}"]


def _fine_ms(duration_ns: int | None) -> str:
    """Return a duration in ms, short ones with two decimals."""
    if duration_ns is None or duration_ns >= 100_000_000:
        return ms(duration_ns)
    return f"{duration_ns / 1e6:.2f}"


def _stage_table(run: SimulatedRun) -> str:
    summary = run.summary
    stages = STAGES if run.request.workers.num_decode else STAGES[:3]
    rows = [
        ["mean", *_parts(summary.ttft_split_mean)[: len(stages)]],
        ["from p99 on", *_parts(summary.ttft_split_p99)[: len(stages)]],
    ]
    return table("Where the time to first token goes (ms)", ("", *stages), rows)


def _parts(split: TtftSplit | None) -> list[str]:
    if split is None:
        return ["-"] * len(STAGES)
    return [ms(part_ns) for part_ns in split.as_parts_ns()]


def _totals(run: SimulatedRun) -> Iterator[str]:
    summary = run.summary
    rates, counts = summary.rates, summary.counts
    lost = counts.arrived - counts.finished
    yield (
        f"Requests: {counts.finished:,} finished{f', {lost:,} not' if lost else ''} in"
        f" {summary.window_ns / NS_PER_S:,.1f} s: {number(rates.requests_per_s)} requests/s,"
        f" {_whole(rates.output_tokens_per_s)} output tokens/s,"
        f" {_whole(rates.total_tokens_per_s)} tokens/s with prompts"
    )
    yield (
        f"Tokens: {summary.num_prompt_tokens:,} of prompts, {summary.num_cached_tokens:,} of them"
        f" from the prefix cache, {run.num_recomputed_tokens:,} computed again;"
        f" {summary.num_preemptions:,} preemptions"
    )
    if run.request.workers.num_decode:
        links = run.result.run.busiest_links
        busiest = f"; busiest link {links[0].utilization:.1%} {links[0].name}" if links else ""
        yield f"Handed off: {format_bytes(summary.transfer_bytes)} of KV cache{busiest}"
    if run.result.run.pressure is not None:
        engine = run.request.network.engine
        yield f"Back-pressure ({engine}): {run.result.run.pressure.sentence()}"
    if run.result.run.pool is not None:
        yield f"KV pool: {found_in_words(run.result.run.pool)}"
    yield f"Busy: {'; '.join(_busy(run.workers))}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _busy(workers: Sequence[WorkerUse]) -> Iterator[str]:
    for role in dict.fromkeys(use.role for use in workers):
        shares = sorted(use.utilization for use in workers if use.role == role)
        steps = sum(use.num_steps for use in workers if use.role == role)
        mean = sum(shares) / len(shares)
        spread = f" ({shares[0]:.0%} to {shares[-1]:.0%})" if len(shares) > 1 else ""
        yield f"{role} {mean:.0%} of the time{spread} in {steps:,} steps"


def _comparison_table(comparison: MeasuredComparison) -> str:
    which = "all" if not comparison.why else f"{comparison.first} to {comparison.last}"
    why = f" ({comparison.why})" if comparison.why else ""
    title = (
        f"Against the recorded run, requests {which}{why}: {comparison.num_requests:,} requests,"
        " from when the engine reads them (ms)"
    )
    columns = ("", "measured", "simulated", "error")
    return table(title, columns, [_figure_row(figure) for figure in comparison.figures])


def _figure_row(figure: Figure) -> list[str]:
    error = "-" if figure.error is None else f"{figure.error:+.1%}"
    return [figure.name, _fine_ms(figure.measured_ns), _fine_ms(figure.simulated_ns), error]
