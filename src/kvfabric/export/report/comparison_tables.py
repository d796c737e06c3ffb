"""What users get and what it costs, design by design."""

from collections.abc import Iterator

from kvfabric.export.report.markup import Markup, join
from kvfabric.export.report.parts import Column, data_table
from kvfabric.export.report.series import all_designs
from kvfabric.export.report.stage_chart import wire_share
from kvfabric.export.report.words import MISSING, figure_of, ms, percent, usd
from kvfabric.plan.compare import Comparison, DesignResult, FabricFacts


def comparison_tables(comparison: Comparison) -> Markup:
    """Return the table of latencies and throughput, then that of parts and prices."""
    return join(_users(comparison), _parts(comparison))


def _users(comparison: Comparison) -> Markup:
    columns = (
        Column("Design", is_text=True),
        Column("p50", "ms", "TTFT"),
        Column("p90", "ms", "TTFT"),
        Column("p99", "ms", "TTFT"),
        Column("p50", "ms", "TPOT"),
        Column("p99", "ms", "TPOT"),
        Column("requests", "/s/GPU", "Throughput"),
        Column("tokens", "/s/GPU", "Throughput"),
        Column("in targets", "%", "Throughput"),
        Column("of TTFT", "%", "Wire"),
        Column("busiest link", "%", "Wire"),
    )
    caption = "What users get: time to first token, time per output token, and rates of the run"
    return data_table(caption, columns, map(_user_row, all_designs(comparison)))


def _user_row(design: DesignResult) -> list[object]:
    summary, rates = design.summary, design.summary.rates
    per_gpu = None if rates.requests_per_s is None else rates.requests_per_s / summary.num_gpus
    links = design.run.busiest_links
    return [
        design.name,
        *map(ms, (summary.ttft.p50_ns, summary.ttft.p90_ns, summary.ttft.p99_ns)),
        *map(ms, (summary.tpot.p50_ns, summary.tpot.p99_ns)),
        figure_of(per_gpu),
        figure_of(rates.output_tokens_per_s_per_gpu),
        percent(rates.slo_share),
        wire_share(summary.ttft_split_mean),
        percent(links[0].utilization) if links else MISSING,
    ]


def fabrics_of(comparison: Comparison) -> dict[str, FabricFacts]:
    """Return the fabrics by label, in order."""
    found: dict[str, FabricFacts] = {}
    for design in comparison.designs:
        if design.fabric is not None:
            found.setdefault(design.fabric.label, design.fabric)
    return found


def _parts(comparison: Comparison) -> Markup:
    columns = (
        Column("Fabric", is_text=True),
        Column("number", "", "Switches"),
        Column("ports each", "", "Switches"),
        Column("most on a path", "", "Switches"),
        Column("copper", "", "Cables"),
        Column("fibre", "", "Cables"),
        Column("Optical modules"),
        Column("typical", "USD", "Price, NICs included"),
        Column("low", "USD", "Price, NICs included"),
        Column("high", "USD", "Price, NICs included"),
        Column("per GPU", "USD", "Price, NICs included"),
    )
    return data_table("Parts and price", columns, _part_rows(comparison))


def _part_rows(comparison: Comparison) -> Iterator[list[object]]:
    keys = ("switches", "radix", "switch_hops_max", "links_copper", "links_fibre", "optics")
    for label, fabric in fabrics_of(comparison).items():
        cost, report = fabric.bom.cost(), fabric.report
        counts = [_count(report.get(key)) for key in keys]
        amounts = (cost.typical_usd, cost.low_usd, cost.high_usd)
        per_gpu = cost.typical_usd / fabric.bom.num_gpus
        yield [label, *counts, *map(usd, amounts), usd(per_gpu)]


def _count(value: object) -> str:
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else str(value)
