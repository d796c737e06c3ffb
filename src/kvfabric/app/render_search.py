"""The text of ``kvfabric search``."""

from collections.abc import Iterator, Sequence

from kvfabric.app.layout import fold, ms, number, table
from kvfabric.app.scatter import Mark, scatter
from kvfabric.export.search_json import search_not_modelled
from kvfabric.plan.search.findings import money, targets
from kvfabric.plan.search.pareto import thinned
from kvfabric.plan.search.result import Evaluated, SearchResult
from kvfabric.plan.verdict import SAME_WITHIN, Verdict

_MAX_ROWS = 20
_CHEAPEST = 6


def render_search(result: SearchResult, findings: Sequence[Verdict]) -> str:
    """Return the text of a search: the verdict first."""
    parts = [
        *_head(result),
        "",
        "Verdict",
        *(f"- {finding.text}" for finding in findings if finding.topic != "near_miss"),
        "",
        *_front(result),
        *_picture(result),
        *_near(findings),
        *_counts(result),
        "",
        f"Does not model: {'; '.join(search_not_modelled(result.request))}.",
        *(f"Note: {note}." for note in result.notes),
    ]
    return "\n".join(fold(part) for part in parts) + "\n"


def _head(result: SearchResult) -> Iterator[str]:
    base = result.request.base
    gpu = "" if base.gpu is None else f" on {base.gpu.name}"
    sizes = result.request.space.num_gpus
    yield base.name
    yield f"{base.model_name}{gpu}, {min(sizes)} to {max(sizes)} GPUs, seed {base.seed}"
    yield f"Load: {base.workload.name}, {len(base.workload.requests):,} in all"
    yield f"Targets: {targets(result.request)}"


def _front(result: SearchResult) -> Iterator[str]:
    if not result.front:
        return
    front = thinned(result.front, lambda design: design.point, SAME_WITHIN)
    best = {id(design) for design in front}
    cheapest = [design for design in result.found[:_CHEAPEST] if id(design) not in best]
    shown = sorted([*front, *cheapest], key=result.found.index)
    title = (
        "Designs that meet the targets, cheapest first (ms; front: none cheaper is as good within"
        f" {SAME_WITHIN:.0%} in TTFT p99 and throughput; searched up to"
        f" {result.request.cost_limit:g} times the cheapest)"
    )
    columns = (
        "design", "fabric", "front", "GPUs", "cost, typical", "low to high", "TTFT p50",
        "p99", "TPOT p99", "tok/s", "met",
    )  # fmt: skip
    yield table(title, columns, [_row(one, is_best=id(one) in best) for one in shown[:_MAX_ROWS]])
    if len(shown) > _MAX_ROWS:
        yield f"  and {len(shown) - _MAX_ROWS} more: see --format json"


def _row(design: Evaluated, *, is_best: bool) -> list[str]:
    summary, cost = design.summary, design.cost.total
    return [
        design.shape.name,
        design.network_name,
        "yes" if is_best else "",
        f"{design.shape.num_gpus}",
        money(cost.typical_usd),
        f"{money(cost.low_usd)} to {money(cost.high_usd)}",
        *(ms(value) for value in (summary.ttft.p50_ns, summary.ttft.p99_ns, summary.tpot.p99_ns)),
        number(summary.rates.output_tokens_per_s),
        f"{summary.rates.slo_share or 0:.1%}",
    ]


def _picture(result: SearchResult) -> Iterator[str]:
    """Yield cost against TTFT p99 of all whole runs, if there are enough to see something."""
    decides = result.request.attainment >= 0.99  # else the p99 may lie beyond the target
    target_ns = result.request.base.slo.ttft_ns if decides else None
    most_ns = max((design.point.ttft_ns for design in result.found), default=0)
    near = [d for d in result.near_misses if d.point.ttft_ns <= 2 * max(most_ns, target_ns or 0)]
    designs = [*result.found, *near]
    if len(designs) < 3:
        return
    marks = [
        Mark(design.usd / 1e6, design.point.ttft_ns / 1e6, _sign(design)) for design in designs
    ]
    if result.winner is not None:
        best = result.winner.point
        marks.append(Mark(best.cost_usd / 1e6, best.ttft_ns / 1e6, "*"))
    yield "TTFT p99 (ms) against cost (million USD, typical)"
    yield scatter(marks, level=None if target_ns is None else target_ns / 1e6)
    line = "" if target_ns is None else "  --- target"
    yield f"  * cheapest  A every worker does both  D prefill and decode apart  x misses{line}"
    yield ""


def _sign(design: Evaluated) -> str:
    if not design.meets:
        return "x"
    return "A" if design.shape.is_aggregated else "D"


def _near(findings: Sequence[Verdict]) -> Iterator[str]:
    near = [finding.text for finding in findings if finding.topic == "near_miss"]
    if near:
        yield "Near misses"
        yield from (f"- {text}" for text in near)
        yield ""


def _counts(result: SearchResult) -> Iterator[str]:
    title = (
        f"What became of {result.num_designs:,} designs of {result.num_shapes:,} fleets"
        f" ({result.num_runs:,} simulations, {result.num_whole_runs:,} of the whole load, the"
        " others until they were sure to miss)"
    )
    rows = [
        [f"{one.count:,}", one.reason.stage, one.reason.value, one.example.split(":", 1)[0]]
        for one in result.pruned
    ]
    rows.append([f"{len(result.found):,}", "", "meet the targets", ""])
    yield _left_table(title, rows)


def _left_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a title: the count to the right, all else to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"  {row[0].rjust(widths[0])}  {row[1].ljust(widths[1])}  {row[2].ljust(widths[2])}"
        f"{f'  such as {row[3]}' if row[3] else ''}".rstrip()
        for row in rows
    ]
    return "\n".join((fold(title), *lines))
