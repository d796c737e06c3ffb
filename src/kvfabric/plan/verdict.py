"""The plan's answer in words, from its numbers only. "It makes no difference" is an answer."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvfabric.metrics.latency import TtftSplit
from kvfabric.plan.compare import Comparison, DesignResult, FabricFacts
from kvfabric.plan.fleet import Fleet
from kvfabric.plan.headroom import decode_headroom
from kvfabric.plan.load_state import LoadState, Pressure
from kvfabric.plan.pool import found_in_words
from kvfabric.plan.price_sensitivity import PriceDifference, price_difference
from kvfabric.plan.request import PlanRequest
from kvfabric.units import format_ns

SAME_WITHIN = 0.05
"""Designs that differ by less than this share count as equal: within the error of the models."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding: a fixed key for programs and a sentence for people."""

    topic: str
    finding: str
    text: str


def judge(comparison: Comparison) -> tuple[Verdict, ...]:
    """Return the findings of a plan, most important first."""
    if all(design.summary.counts.finished == 0 for design in comparison.designs):
        return (
            _nothing_served(comparison),
            *_deadlock(comparison),
            *_failures(comparison),
            *_lost(comparison),
        )
    return (
        *_deadlock(comparison),
        _load(comparison),
        *_decode_headroom(comparison),
        _slo(comparison),
        _fabric(comparison),
        *_balancing(comparison),
        _cost(comparison),
        *_disaggregation(comparison),
        *_reuse(comparison),
        *_failures(comparison),
        *_lost(comparison),
    )


def judge_run(request: PlanRequest, fleet: Fleet, result: DesignResult) -> tuple[Verdict, ...]:
    """Return the findings of one run, most important first."""
    alone = Comparison(request=request, fleet=fleet, designs=(result,), aggregated=None)
    if result.summary.counts.finished == 0:
        return (_nothing_served(alone), *_deadlock(alone), *_failures(alone), *_lost(alone))
    pool = _decode_headroom(alone) if request.workers.num_decode else _preempted(alone)
    has_slo = request.slo.ttft_ns is not None or request.slo.tpot_ns is not None
    slo = (_slo(alone),) if has_slo else ()
    return (*_deadlock(alone), _load(alone), *pool, *slo, *_failures(alone), *_lost(alone))


def _deadlock(comparison: Comparison) -> Iterable[Verdict]:
    """Warn of fabrics that priority flow control can lock up on the paths they use."""
    for design in comparison.designs:
        report = design.deadlock
        if report is None or not report.can_deadlock:
            continue
        first, last = report.channel_names[0], report.channel_names[-1]
        fix = (
            f" {report.fix.num_priorities} lossless priorities, raised at the hops"
            f" {', '.join(map(str, report.fix.raised_at))}, prevent it."
            if report.fix is not None
            else ""
        )
        text = (
            f"{design.name} can deadlock under priority flow control with one lossless priority:"
            f" {len(report.cycle)} buffers wait for each other in a circle, {first} to {last}.{fix}"
        )
        yield Verdict("deadlock", "possible", text)


def _preempted(comparison: Comparison) -> Iterable[Verdict]:
    """Say how many requests the pool of a worker holds, if it ran out of blocks."""
    count = comparison.designs[0].summary.num_preemptions
    headroom = decode_headroom(comparison.fleet.scheduler, comparison.request.workload.requests)
    if not count or headroom is None:
        return
    text = (
        f"Running requests were preempted {count:,} times: the KV pool of a worker holds"
        f" {headroom.num_fitting:,} requests of {headroom.seq_tokens:,} tokens (the mean of the"
        f" load) and max_num_seqs is {headroom.max_num_seqs:,}."
    )
    yield Verdict("kv_pool", "preempted", text)


def _nothing_served(comparison: Comparison) -> Verdict:
    longest = min(
        comparison.fleet.scheduler.max_model_len, comparison.fleet.decode.scheduler.max_model_len
    )
    text = (
        "Nothing was served: not one request finished. A worker takes requests of up to"
        f" {longest:,} tokens. Latencies and comparisons would mean nothing."
    )
    return Verdict("load", "nothing_served", text)


def _load(comparison: Comparison) -> Verdict:
    worst = max(
        comparison.designs,
        key=lambda design: (_RANK[design.load.pressure], design.load.waiting_share),
    )
    state = worst.load
    share = f"{state.waiting_share:.0%} of the time to first token is waiting"
    match state.pressure:
        case Pressure.OVERLOADED:
            text = (
                f"The fleet is overloaded ({worst.name}): {share}, most of it for"
                f" {state.bottleneck}; late requests wait {state.growth:.1f} times as long as early"
                f" ones{_queue_growth(state)} and {state.lost_share:.1%} were given up. Latencies"
                " of an overloaded fleet depend on how long the load lasts."
            )
        case Pressure.SATURATED:
            text = (
                f"The fleet is saturated ({worst.name}): {share}, most of it for"
                f" {state.bottleneck}; {_why_bounded(state)}."
            )
        case Pressure.STABLE:
            text = f"The fleet keeps up with the load: at most {share}."
    return Verdict("load", state.pressure.value, text)


def _queue_growth(state: LoadState) -> str:
    if state.queue_growth_per_s <= 0 or not state.arrivals_per_s:
        return ""
    return (
        f", the queue grows by {state.queue_growth_per_s:.3g} of {state.arrivals_per_s:.3g}"
        " requests/s"
    )


def _why_bounded(state: LoadState) -> str:
    if state.num_users is None or state.knee_users is None:
        return "the queue does not grow without end"
    return (
        f"about {max(state.knee_users, 1):,.0f} of the {state.num_users:,} users keep it busy and"
        " each further one adds waiting but no throughput; users who wait for answers cannot"
        " overload it"
    )


def _decode_headroom(comparison: Comparison) -> Iterable[Verdict]:
    """Say that batch and hand-offs do not fit into a decode pool together, if that cost time."""
    requests = comparison.request.workload.requests
    headroom = decode_headroom(comparison.fleet.decode.scheduler, requests)
    if headroom is None or headroom.num_seqs > 0:
        return
    if any(_ran_out_of_blocks(design) for design in comparison.designs):
        yield Verdict("decode_headroom", "none", headroom.sentence())


def _ran_out_of_blocks(design: DesignResult) -> bool:
    """Return whether requests were preempted or waited for decode blocks for longer than noise."""
    split = design.summary.ttft_split_mean
    waited = split is not None and split.decode_blocks_wait_ns > SAME_WITHIN * split.total_ns
    return waited or design.summary.num_preemptions > 0


_RANK = {Pressure.STABLE: 0, Pressure.SATURATED: 1, Pressure.OVERLOADED: 2}


def _slo(comparison: Comparison) -> Verdict:
    slo = comparison.request.slo
    targets = [
        f"{name} {format_ns(target)}"
        for name, target in (("TTFT", slo.ttft_ns), ("TPOT", slo.tpot_ns))
        if target is not None
    ]
    shares = [(d.summary.rates.slo_share or 0.0, d.name) for d in comparison.designs]
    best, worst = max(shares), min(shares)
    finding = "met" if worst[0] >= 0.99 else "partly" if best[0] >= 0.5 else "missed"
    text = (
        f"{_percent_range(worst[0], best[0])} of the requests meet the targets"
        f" ({' and '.join(targets) or 'none set'})."
    )
    return Verdict("slo", finding, text)


def _percent_range(low: float, high: float) -> str:
    first, last = f"{low:.1%}", f"{high:.1%}"
    return first if first == last else f"{first} to {last}"


def _fabric(comparison: Comparison) -> Verdict:
    """Compare the best policy of each fabric on TTFT p99."""
    best = {kind: min(rows, key=_p99) for kind, rows in _by_kind(comparison).items()}
    order = sorted(best.values(), key=_p99)
    first, last = order[0], order[-1]
    wire = max(_wire_share(design.summary.ttft_split_mean) for design in comparison.designs)
    share = f"the wire takes at most {wire:.1%} of the mean time to first token"
    if len(order) == 1:
        return Verdict("fabric", "single", f"Only {first.name} was tried; {share}.")
    gap = _gap(_p99(first), _p99(last))
    if gap < SAME_WITHIN:
        text = (
            f"The fabric makes no difference here: with the better policy on each, TTFT p99 is"
            f" {_ms(_p99(first))} to {_ms(_p99(last))} ({gap:.1%} apart); {share}."
        )
        return Verdict("fabric", "no_difference", text)
    text = (
        f"{first.name} has the lowest TTFT p99, {_ms(_p99(first))}, {gap:.0%} below {last.name}"
        f" with {_ms(_p99(last))}; {share}."
    )
    return Verdict("fabric", "difference", text)


def _balancing(comparison: Comparison) -> Iterable[Verdict]:
    """Say on which fabrics the choice of paths matters more than the model's error."""
    compared = {kind: rows for kind, rows in _by_kind(comparison).items() if len(rows) > 1}
    gaps = {
        kind: _gap(min(map(_p99, rows)), max(map(_p99, rows))) for kind, rows in compared.items()
    }
    if gaps and max(gaps.values()) < SAME_WITHIN:
        text = (
            f"Load balancing changes TTFT p99 by at most {max(gaps.values()):.1%}: no difference."
        )
        yield Verdict("load_balancing", "no_difference", text)
        return
    for kind, rows in compared.items():
        first, last = min(rows, key=_p99), max(rows, key=_p99)
        if gaps[kind] < SAME_WITHIN:
            text = f"On {kind} load balancing changes TTFT p99 by {gaps[kind]:.1%}: no difference."
            yield Verdict("load_balancing", "no_difference", text)
        else:
            text = f"On {kind} {first.load_balancing} lowers TTFT p99 by {gaps[kind]:.0%} against"
            yield Verdict("load_balancing", "difference", f"{text} {last.load_balancing}.")


def _cost(comparison: Comparison) -> Verdict:
    cheapest_first = sorted(
        (rows[0] for rows in _by_kind(comparison).values()), key=lambda d: (_usd(d), d.name)
    )
    first, last = cheapest_first[0], cheapest_first[-1]
    assert first.fabric is not None
    assert last.fabric is not None
    if first is last:
        text = f"{first.fabric.label} costs about {_money(_usd(first))}."
        return Verdict("cost", first.fabric.label, text)
    text = (
        f"{first.fabric.label} is the cheapest at typical prices, about {_money(_usd(first))}:"
        f" {_saving(first.fabric, last.fabric)}"
    )
    following = cheapest_first[1]
    if following is not last:
        assert following.fabric is not None
        text += f"; {_saving(first.fabric, following.fabric)}"
    return Verdict("cost", first.fabric.label, f"{text}.")


def _saving(cheap: FabricFacts, dear: FabricFacts) -> str:
    """Return what the first of two fabrics saves, and whether prices could turn that."""
    difference = price_difference(dear.bom, cheap.bom)
    less, usd = difference.range.typical_usd, dear.bom.cost().typical_usd
    share = less / usd if usd else 0.0
    return f"{share:.0%} less than {dear.label} ({_money(usd)}), {_how_certain(difference)}"


def _how_certain(difference: PriceDifference) -> str:
    """Return whether prices within their ranges can turn a ranking; both pay the same prices."""
    if difference.is_settled:
        return "at any prices within their ranges"
    turning = difference.turning_prices()
    if not turning:
        return "which several prices within their ranges together can turn"
    key, usd = turning[0]
    return f"which one price within its range can turn: {key} at ${usd:,.0f}"


def _disaggregation(comparison: Comparison) -> Iterable[Verdict]:
    together = comparison.aggregated
    if together is None:
        return
    apart = max(comparison.designs, key=lambda d: (_good(d), -_p99(d)))
    gain = _good(apart) - _good(together)
    base = max(_good(apart), _good(together))
    numbers = (
        f"{_good(apart):.4g} against {_good(together):.4g} requests/s within the targets"
        f" (TTFT p99 {_ms(_p99(apart))} against {_ms(_p99(together))}, TPOT p99"
        f" {_ms(_tpot99(apart))} against {_ms(_tpot99(together))}; token budget"
        f" {comparison.request.workers.max_num_batched_tokens:,} in both)"
    )
    if base == 0 or abs(gain) < SAME_WITHIN * base:
        text = f"Disaggregation makes no difference to goodput on this fleet: {numbers}."
        yield Verdict("disaggregation", "no_difference", text)
    elif gain > 0:
        yield Verdict("disaggregation", "pays", f"Disaggregation pays: {numbers}.")
    else:
        text = f"Disaggregation does not pay: {numbers} when every worker does both."
        yield Verdict("disaggregation", "does_not_pay", text)


def _reuse(comparison: Comparison) -> Iterable[Verdict]:
    """Say where the KV pool had prompts, design by design."""
    for design in _all_designs(comparison):
        if design.run.pool is not None:
            text = f"KV pool, {design.name}: {found_in_words(design.run.pool)}."
            yield Verdict("reuse", "found" if design.run.pool.hit_tokens else "nothing", text)


def _failures(comparison: Comparison) -> Iterable[Verdict]:
    """Say what workers that died cost the requests they had."""
    failures = comparison.request.failures
    if not failures:
        return
    shown = "; ".join(failure.sentence() for failure in failures[:3])
    more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
    costs = "; ".join(
        f"{design.name} {design.run.num_restarts:,} restarts, {design.summary.counts.failed:,}"
        " requests failed"
        for design in _all_designs(comparison)
    )
    yield Verdict("failures", "workers", f"Workers died ({shown}{more}): {costs}.")


def _lost(comparison: Comparison) -> Iterable[Verdict]:
    """Name what did not finish: nothing is dropped in silence."""
    bad_rows = len(comparison.request.workload.bad_rows)
    if bad_rows:
        yield Verdict("lost", "bad_rows", f"{bad_rows} rows of the trace were skipped.")
    for design in _all_designs(comparison):
        counts = design.summary.counts
        failed = f" {counts.failed} failed with their workers," if counts.failed else ""
        if counts.finished < counts.arrived:
            text = (
                f"{design.name}: of {counts.arrived} requests {counts.rejected} were rejected,"
                f" {counts.aborted} aborted,{failed} {counts.unfinished} left unfinished."
            )
            yield Verdict("lost", "requests", text)


def _all_designs(comparison: Comparison) -> Sequence[DesignResult]:
    extra = () if comparison.aggregated is None else (comparison.aggregated,)
    return (*comparison.designs, *extra)


def _by_kind(comparison: Comparison) -> dict[str, list[DesignResult]]:
    groups: dict[str, list[DesignResult]] = {}
    for design in comparison.designs:
        assert design.fabric is not None
        groups.setdefault(design.fabric.label, []).append(design)
    return groups


def _or_zero(get: Callable[[DesignResult], int | float | None]) -> Callable[[DesignResult], float]:
    return lambda design: float(get(design) or 0)


_tpot99 = _or_zero(lambda design: design.summary.tpot.p99_ns)
_good = _or_zero(lambda design: design.summary.rates.goodput_per_s)


def _p99(design: DesignResult) -> float:
    """Return TTFT p99, without end where nothing finished."""
    p99_ns = design.summary.ttft.p99_ns
    return math.inf if p99_ns is None else float(p99_ns)


def _usd(design: DesignResult) -> float:
    assert design.fabric is not None
    return design.fabric.bom.cost().typical_usd


def _gap(low: float, high: float) -> float:
    if math.isinf(high):
        return 0.0 if math.isinf(low) else 1.0
    return (high - low) / high if high else 0.0


def _wire_share(split: TtftSplit | None) -> float:
    return split.wire_ns / split.total_ns if split is not None and split.total_ns else 0.0


def _ms(duration_ns: float) -> str:
    return "without end" if math.isinf(duration_ns) else format_ns(round(duration_ns))


def _money(usd: float) -> str:
    return f"${usd / 1e6:.3g}M" if usd >= 1e6 else f"${usd / 1e3:.3g}k"
