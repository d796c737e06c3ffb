"""The answer of a search in words, from its numbers only."""

from collections.abc import Iterable

from kvfabric.plan.bom import Cost
from kvfabric.plan.search.result import Evaluated, SearchResult
from kvfabric.plan.search.space import Mode, SearchRequest
from kvfabric.plan.verdict import SAME_WITHIN, Verdict
from kvfabric.units import format_ns


def judge_search(result: SearchResult) -> tuple[Verdict, ...]:
    """Return the findings of a search, most important first."""
    winner = result.winner
    if winner is None:
        return (_nothing(result), *_near_misses(result))
    return (
        _winner(result.request, winner),
        *_runner_up(winner, result.runner_up),
        *_modes(result),
        *_fabric(result),
        *_near_misses(result),
    )


def targets(request: SearchRequest) -> str:
    """Return the targets in words, such as ``TTFT 5 s and TPOT 50 ms for 99 % of the requests``."""
    slo = request.base.slo
    named = (("TTFT", slo.ttft_ns), ("TPOT", slo.tpot_ns))
    both = " and ".join(f"{name} {format_ns(ns)}" for name, ns in named if ns is not None)
    return f"{both} for {100 * request.attainment:g} % of the requests"


def money(usd: float) -> str:
    """Return an amount in three digits.

    >>> money(1_960_000)
    '$1.96M'
    """
    return f"${usd / 1e6:.3g}M" if usd >= 1e6 else f"${usd / 1e3:.3g}k"


def money_range(cost: Cost) -> str:
    """Return an amount with its range."""
    return f"{money(cost.typical_usd)} ({money(cost.low_usd)} to {money(cost.high_usd)})"


def described(design: Evaluated, gpu_name: str) -> str:
    """Return workers, GPUs and fabric in words."""
    shape = design.shape
    gpus = f"{shape.num_gpus} x {gpu_name}"
    if shape.is_aggregated:
        return f"{shape.name} on {gpus}, every worker does both"
    if design.option is None:
        return f"{shape.name} on {gpus} in one server, without a fabric"
    return f"{shape.name} on {gpus} over {design.network_name}"


def _gpu_name(request: SearchRequest) -> str:
    return "GPU" if request.base.gpu is None else request.base.gpu.name


def _nothing(result: SearchResult) -> Verdict:
    sizes = result.request.space.num_gpus
    text = (
        f"No design meets the targets ({targets(result.request)}): {result.num_designs:,} designs"
        f" of {min(sizes)} to {max(sizes)} GPUs, {result.num_runs:,} simulations."
        " Allow more GPUs, other sizes of workers or looser targets."
    )
    return Verdict("winner", "none", text)


def _winner(request: SearchRequest, winner: Evaluated) -> Verdict:
    text = (
        f"The cheapest design that meets the targets ({targets(request)}):"
        f" {described(winner, _gpu_name(request))}, about {money_range(winner.cost.total)}."
        f" {_figures(winner)}."
    )
    return Verdict("winner", winner.mode.value, text)


def _figures(design: Evaluated) -> str:
    summary = design.summary
    return (
        f"TTFT p99 {_ns(summary.ttft.p99_ns)}, TPOT p99 {_ns(summary.tpot.p99_ns)},"
        f" {summary.rates.slo_share or 0:.1%} of the requests meet the targets"
    )


def _ns(duration_ns: int | None) -> str:
    return "-" if duration_ns is None else format_ns(duration_ns)


def _runner_up(winner: Evaluated, other: Evaluated | None) -> Iterable[Verdict]:
    if other is None:
        yield Verdict("runner_up", "none", "No other fleet was found that meets the targets.")
        return
    more = other.usd / winner.usd - 1
    extra = "for the same money" if more < 0.0005 else f"for {more:.1%} more"
    network = "" if other.option is None else f" over {other.network_name}"
    text = (
        f"Next: {other.shape.name}{network} {extra}, {money_range(other.cost.total)}:"
        f" TTFT p99 {_ns(other.summary.ttft.p99_ns)}. {price_order(winner, other)}"
    )
    yield Verdict("runner_up", other.mode.value, text)


def price_order(cheaper: Evaluated, dearer: Evaluated) -> str:
    """Return whether the order of two designs depends on where in their ranges the prices lie.

    Both have the same GPUs and mostly the same parts, whose prices move together: what counts is
    the order with all prices low and with all prices high, not whether the ranges overlap.
    """
    first, second = cheaper.cost.total, dearer.cost.total
    if first == second:
        return "Both cost the same at any price."
    turns = [
        name
        for name, left, right in (
            ("low", first.low_usd, second.low_usd),
            ("high", first.high_usd, second.high_usd),
        )
        if left > right
    ]
    overlap = "overlap" if first.high_usd >= second.low_usd else "do not overlap"
    if not turns:
        return (
            f"The price ranges {overlap}; with all prices low and with all prices high the order"
            " is the same."
        )
    return f"The price ranges {overlap}, and with all prices {' or '.join(turns)} the order turns."


def _modes(result: SearchResult) -> Iterable[Verdict]:
    """Say whether prefill and decode should have workers of their own."""
    if set(result.request.space.modes) != set(Mode):
        return
    apart, together = result.cheapest(Mode.DISAGGREGATED), result.cheapest(Mode.AGGREGATED)
    most = max(result.request.space.num_gpus)
    if apart is None:
        text = f"Aggregated serving wins: no split into prefill and decode of up to {most} GPUs"
        yield Verdict("disaggregation", "does_not_pay", f"{text} meets the targets.")
        return
    if together is None:
        text = f"Disaggregation wins: up to {most} GPUs that do both do not meet the targets."
        yield Verdict("disaggregation", "pays", text)
        return
    fabric = "which need no fabric in one server"
    if apart.cost.fabric is not None:
        fabric = f"{money(apart.cost.fabric.typical_usd)} of it for their fabric"
    numbers = (
        f"{money(together.usd)} for {together.shape.num_gpus} GPUs that do both"
        f" ({together.shape.name}) against {money(apart.usd)} for {apart.shape.num_gpus} GPUs"
        f" with prefill and decode apart ({apart.shape.name}), {fabric}; TTFT p99"
        f" {_ns(together.summary.ttft.p99_ns)} against {_ns(apart.summary.ttft.p99_ns)}, TPOT p99"
        f" {_ns(together.summary.tpot.p99_ns)} against {_ns(apart.summary.tpot.p99_ns)}"
    )
    gap = abs(apart.usd - together.usd) / max(apart.usd, together.usd)
    if gap < SAME_WITHIN:
        text = f"Disaggregation makes no difference to the cost here: {numbers}."
        yield Verdict("disaggregation", "no_difference", text)
    elif apart.usd < together.usd:
        yield Verdict("disaggregation", "pays", f"Disaggregation wins by {gap:.0%}: {numbers}.")
    else:
        text = f"Aggregated serving wins by {gap:.0%}: {numbers}."
        yield Verdict("disaggregation", "does_not_pay", text)


def _fabric(result: SearchResult) -> Iterable[Verdict]:
    """Say whether a dearer fabric could help the cheapest disaggregated design."""
    design = result.cheapest(Mode.DISAGGREGATED)
    if design is None or design.ideal_ttft_p99_ns is None or design.option is None:
        return
    real, ideal = design.point.ttft_ns, design.ideal_ttft_p99_ns
    link = design.outcome.busiest_link
    busiest = "" if link is None else f"; its busiest link is used {link[1]:.1%}"
    numbers = (
        f"{design.shape.name} over {design.network_name} has a TTFT p99 of {format_ns(real)}, over"
        f" an ideal network of the fastest NICs {format_ns(ideal)}{busiest}"
    )
    missed = design.missed_fabrics
    if missed:
        others = f"{missed[0]} misses the targets" + (
            f", and so do {len(missed) - 1} more that cost no more" if len(missed) > 1 else ""
        )
        gain = "would gain" if ideal < (1 - SAME_WITHIN) * real else "would gain nothing"
        text = f"The fabric matters: {others}; a better one {gain}: {numbers}."
        yield Verdict("fabric", "needed", text)
    elif ideal >= (1 - SAME_WITHIN) * real:
        text = f"The fabric makes no difference, so the cheapest will do: {numbers}."
        yield Verdict("fabric", "no_difference", text)
    else:
        yield Verdict("fabric", "difference", f"The fabric matters: {numbers}.")


def _near_misses(result: SearchResult) -> Iterable[Verdict]:
    for design in result.near_misses:
        yield Verdict("near_miss", design.mode.value, near_miss(result, design))


def near_miss(result: SearchResult, design: Evaluated) -> str:
    """Return how far a design is from the targets, in a sentence."""
    fewer = ""
    if result.winner is not None:
        count = result.winner.shape.num_gpus - design.shape.num_gpus
        fewer = f" ({count} GPUs fewer)" if count > 0 else " (as many GPUs)"
    network = "" if design.option is None else f" over {design.network_name}"
    return (
        f"{design.shape.name}{network}{fewer}, {money(design.usd)}:"
        f" {_how_far(design, result.request)};"
        f" {design.summary.rates.slo_share or 0:.1%} of the requests meet the targets."
    )


def _how_far(design: Evaluated, request: SearchRequest) -> str:
    """Return by how much the p99 miss; they decide nothing where fewer than 99 % must meet."""
    summary, slo = design.summary, request.base.slo
    if request.attainment < 0.99:
        return f"TTFT p99 {_ns(summary.ttft.p99_ns)}, TPOT p99 {_ns(summary.tpot.p99_ns)}"
    parts = [
        f"misses {name} p99 by {(p99 / target - 1):.0%} ({format_ns(p99)})"
        for name, p99, target in (
            ("TTFT", summary.ttft.p99_ns, slo.ttft_ns),
            ("TPOT", summary.tpot.p99_ns, slo.tpot_ns),
        )
        if p99 is not None and target is not None and p99 > target
    ]
    return " and ".join(parts) or "both p99 are met, but not by the same requests"
