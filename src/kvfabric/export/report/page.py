"""The whole report as one HTML page: nothing is fetched, nothing but its own script runs."""

from collections.abc import Sequence
from importlib.resources import files

from kvfabric import __version__
from kvfabric.export.report.assumptions import assumptions
from kvfabric.export.report.comparison_tables import comparison_tables
from kvfabric.export.report.cost_chart import cost_figure
from kvfabric.export.report.fabric_section import fabric_parts
from kvfabric.export.report.kv_chart import kv_figure
from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import pairs, section
from kvfabric.export.report.parts_list import parts_list
from kvfabric.export.report.sensitivity_chart import sensitivity_figure
from kvfabric.export.report.stage_chart import stage_figure
from kvfabric.export.report.ttft_chart import ttft_figure
from kvfabric.export.report.words import plural
from kvfabric.plan.compare import Comparison
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.verdict import Verdict
from kvfabric.units import format_ns, format_rate

_TOPICS = {
    "deadlock": "Deadlock",
    "load": "Load",
    "decode_headroom": "Decode memory",
    "kv_pool": "KV pool",
    "slo": "Targets",
    "fabric": "Fabric",
    "load_balancing": "Load balancing",
    "cost": "Price",
    "disaggregation": "Disaggregation",
    "reuse": "Reuse",
    "failures": "Failures",
    "lost": "Not finished",
}

# Only what stands in the page itself: styles, its script, the empty icon.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def report_html(
    comparison: Comparison, verdicts: Sequence[Verdict], *, scenario: str, command: str
) -> str:
    """Return the page; equal plans give equal bytes.

    Args:
        comparison: the results.
        verdicts: findings, most important first.
        scenario: what reproduces it, as YAML.
        command: that runs it.
    """
    title = comparison.request.name
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} \u2013 kvfabric plan"),
        Markup('<link rel="icon" href="data:,">'),
        el("style", Markup(_asset("report.css"))),
    )
    body = el(
        "body",
        el("a", "Skip to the verdict", href="#verdict", class_="skip"),
        _header(comparison),
        el("main", *_sections(comparison, verdicts, scenario, command)),
        el("footer", f"kvfabric {__version__}. Simulated, not measured: see the assumptions."),
        el("script", Markup(_asset("report.js"))),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return files("kvfabric.export.report").joinpath(name).read_text("utf-8")


def _header(comparison: Comparison) -> Markup:
    request = comparison.request
    load = f"{request.workload.name}, {len(request.workload.requests):,} in all"
    return el(
        "header",
        el("p", "kvfabric plan", class_="kicker"),
        el("h1", request.name),
        el("p", _fleet(request), class_="lead"),
        el("p", f"Load: {load}. {_targets(request)}", class_="lead"),
    )


def _fleet(request: PlanRequest) -> str:
    workers = request.workers
    gpu = "GPUs" if request.gpu is None else request.gpu.name
    prefill = f"{workers.num_prefill:,} prefill workers of {plural(workers.prefill_gpus, 'GPU')}"
    decode = f"{workers.num_decode:,} decode workers of {workers.decode_gpus}"
    rate = format_rate(request.network.nic_rate_bps)
    fleet = f"{workers.num_gpus:,} \u00d7 {gpu}: {prefill}, {decode}"
    return f"{request.model_name} on {fleet}; {rate} per GPU, seed {request.seed}."


def _targets(request: PlanRequest) -> str:
    slo = request.slo
    found = [
        f"{name} {format_ns(target)}"
        for name, target in (("TTFT", slo.ttft_ns), ("TPOT", slo.tpot_ns))
        if target is not None
    ]
    return f"Targets: {' and '.join(found) or 'none'}."


def _sections(
    comparison: Comparison, verdicts: Sequence[Verdict], scenario: str, command: str
) -> list[Markup]:
    parts: list[tuple[str, str, list[Markup | None]]] = [
        ("verdict", "Verdict", [_verdicts(verdicts)]),
        ("comparison", "Comparison", [comparison_tables(comparison)]),
        ("fabrics", "Fabrics", [*fabric_parts(comparison)]),
        ("ttft-section", "Time to first token", [ttft_figure(comparison)]),
        ("stages-section", "Where the time goes", [stage_figure(comparison)]),
        ("kv-section", "KV cache growth", [kv_figure(comparison)]),
        ("cost-section", "Price against latency", [cost_figure(comparison)]),
        ("sensitivity-section", "Prices that matter most", [sensitivity_figure(comparison)]),
        ("parts", "Bill of materials", [parts_list(comparison)]),
        ("assumptions", "Assumptions and sources", [assumptions(comparison)]),
        ("scenario", "Scenario", [_scenario(scenario, command)]),
    ]
    shown = [(anchor, title, [p for p in inner if p]) for anchor, title, inner in parts]
    shown = [part for part in shown if part[2]]
    first = section(*shown[0][:2], *shown[0][2])
    contents = _contents([(anchor, title) for anchor, title, _ in shown[1:]])
    return [first, contents, *(section(anchor, title, *p) for anchor, title, p in shown[1:])]


def _contents(entries: Sequence[tuple[str, str]]) -> Markup:
    links = (el("li", el("a", title, href=f"#{anchor}")) for anchor, title in entries)
    return el("nav", el("ul", *links), aria_label="Contents")


def _verdicts(verdicts: Sequence[Verdict]) -> Markup:
    items = ((_TOPICS.get(v.topic, v.topic), v.text) for v in verdicts)
    return pairs(items, class_="verdicts")


def _scenario(scenario: str, command: str) -> Markup:
    lead = (
        "Save this as scenario.yaml and run the command: it gives the same figures. Relative paths"
        " in it start from the folder of that file. Behind each value stands where it comes from."
    )
    return join(
        el("p", lead),
        el("pre", el("code", command), class_="command"),
        el("pre", el("code", scenario), class_="yaml", id="yaml"),
    )
