"""Results as text for people. The same input gives the same bytes: fixed width, no color codes."""

from collections.abc import Iterator, Sequence

from kvfabric.app.fleet_words import roles
from kvfabric.app.layout import STAGES, fold, ms, number, table
from kvfabric.export.limits import stated_error
from kvfabric.export.plan_json import plan_not_modelled
from kvfabric.metrics.latency import TtftSplit
from kvfabric.plan.compare import Comparison, DesignResult, FabricFacts
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.sizing_lines import sizing_lines
from kvfabric.plan.verdict import Verdict
from kvfabric.units import format_rate


def render_plan(comparison: Comparison, verdicts: Sequence[Verdict]) -> str:
    """Return the text of ``kvfabric plan``."""
    request = comparison.request
    parts = [
        f"{request.name}",
        _fleet_line(request),
        f"Load: {request.workload.name}, {len(request.workload.requests):,} in all",
        "",
        "KV cache",
        *_sizing(comparison),
        "",
        _fabric_table(comparison),
        _latency_table(comparison),
        _stage_table(comparison),
        *_pressure_lines(comparison),
        "Verdict",
        *(f"- {verdict.text}" for verdict in verdicts),
        "",
        f"Step times: {comparison.fleet.model.source}.",
        f"Their error: {stated_error(comparison.fleet.model)}.",
        "Does not model: " + "; ".join(plan_not_modelled(request)) + ".",
        *(f"Note: {note}." for note in _notes(comparison)),
    ]
    return "\n".join(fold(part) for part in parts) + "\n"


def _sizing(comparison: Comparison) -> Iterator[str]:
    """Yield the lines of a worker's sizing; of decode workers too, if they have other GPUs."""
    own, decode = comparison.fleet.sizing, comparison.fleet.decode.sizing
    assert own is not None, "a plan names its GPU"
    if decode is not None and decode.tp != own.tp:
        yield from (f"  {line}" for line in sizing_lines(decode))
        yield ""
        yield "KV cache of prefill workers"
    yield from (f"  {line}" for line in sizing_lines(own))


def _notes(comparison: Comparison) -> list[str]:
    """Return simplifications and warnings, each once."""
    warnings = [text for design in _designs(comparison) for text in design.summary.warnings]
    return list(dict.fromkeys((*comparison.fleet.notes, *warnings)))


def _fleet_line(request: PlanRequest) -> str:
    workers = request.workers
    assert request.gpu is not None, "a plan names its GPU"
    return (
        f"{request.model_name} on {workers.num_gpus} x {request.gpu.name}: {roles(workers)},"
        f" {format_rate(request.network.nic_rate_bps)} per GPU, seed {request.seed}"
    )


def render_mapping(values: dict[str, object]) -> str:
    """Return a mapping as aligned lines, nested mappings indented."""
    return "\n".join(_mapping_lines(values)) + "\n"


def _mapping_lines(values: dict[str, object], indent: str = "") -> list[str]:
    width = max((len(key) for key in values), default=0)
    lines: list[str] = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}")
            lines.extend(_mapping_lines(value, indent + "  "))
        elif not isinstance(value, list):
            shown = f"{value:,}" if type(value) is int else str(value)
            lines.append(f"{indent}{key.ljust(width)}  {shown}")
    return lines


def _fabric_table(comparison: Comparison) -> str:
    rows: dict[str, list[str]] = {}
    for design in comparison.designs:
        if design.fabric is not None and design.fabric.label not in rows:
            rows[design.fabric.label] = _fabric_row(design.fabric)
    book = next(d.fabric.bom for d in comparison.designs if d.fabric is not None)
    own = f"; yours: {', '.join(book.given_prices)}" if book.given_prices else ""
    title = f"Parts and price (price book {book.price_book}, {book.price_date}{own}; NICs included)"
    columns = (
        "fabric", "switches", "radix", "copper", "fibre", "optics", "hops", "price, typical",
        "low to high",
    )  # fmt: skip
    return table(title, columns, rows.values())


def _fabric_row(fabric: FabricFacts) -> list[str]:
    report, cost = fabric.report, fabric.bom.cost()
    cables = [f"{fabric.bom.count(category):,}" for category in ("copper", "fibre", "optic")]
    return [
        fabric.label,
        *(f"{report[key]:,}" for key in ("switches", "radix")),
        *cables,
        f"{report['switch_hops_max']}",
        f"${cost.typical_usd:,.0f}",
        f"${cost.low_usd:,.0f} to ${cost.high_usd:,.0f}",
    ]


def _latency_table(comparison: Comparison) -> str:
    columns = (
        "design", "TTFT p50", "p90", "p99", "TPOT p50", "p99", "req/s/GPU", "tok/s/GPU",
        "goodput", "busiest link",
    )  # fmt: skip
    rows = [_latency_row(design) for design in _designs(comparison)]
    title = "What users get (ms; req/s per GPU; goodput: share of requests within the targets)"
    return table(title, columns, rows)


def _latency_row(design: DesignResult) -> list[str]:
    summary = design.summary
    rates, num_gpus = summary.rates, summary.num_gpus
    per_gpu = None if rates.requests_per_s is None else rates.requests_per_s / num_gpus
    link = design.run.busiest_links[0] if design.run.busiest_links else None
    return [
        design.name,
        *(ms(value) for value in (summary.ttft.p50_ns, summary.ttft.p90_ns, summary.ttft.p99_ns)),
        *(ms(value) for value in (summary.tpot.p50_ns, summary.tpot.p99_ns)),
        number(per_gpu),
        number(rates.output_tokens_per_s_per_gpu),
        "-" if rates.slo_share is None else f"{rates.slo_share:.1%}",
        "-" if link is None else f"{link.utilization:.1%} {link.name}",
    ]


def _stage_table(comparison: Comparison) -> str:
    rows = [
        [design.name, *_stages(design.summary.ttft_split_mean), *_tail(design)]
        for design in _designs(comparison)
    ]
    columns = ("design", *STAGES, "wire at p99")
    return table("Where the time to first token goes (mean, ms)", columns, rows)


def _pressure_lines(comparison: Comparison) -> Iterator[str]:
    """Yield pauses, victims and the worst queue per design, under engines that know them."""
    pressures = [(design.name, design.run.pressure) for design in comparison.designs]
    known = [(name, pressure) for name, pressure in pressures if pressure is not None]
    if not known:
        return
    yield f"Back-pressure (flow engine {comparison.request.network.engine})"
    for name, pressure in known:
        yield f"  {name}: {pressure.sentence()}"
    yield ""


def _tail(design: DesignResult) -> list[str]:
    split = design.summary.ttft_split_p99
    return [ms(None if split is None else split.wire_ns)]


def _stages(split: TtftSplit | None) -> list[str]:
    if split is None:
        return ["-"] * len(STAGES)
    return [ms(part_ns) for part_ns in split.as_parts_ns()]


def _designs(comparison: Comparison) -> list[DesignResult]:
    extra = [] if comparison.aggregated is None else [comparison.aggregated]
    return [*comparison.designs, *extra]
