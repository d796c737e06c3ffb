"""What the figures rest on, each with its source, and what they leave out."""

from collections.abc import Iterator

from kvfabric.export.limits import stated_error
from kvfabric.export.plan_json import plan_not_modelled
from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import bullets, pairs
from kvfabric.export.report.series import all_designs
from kvfabric.perf.handoff import ROCE_FRAME_BYTES, ROCE_PAYLOAD_BYTES
from kvfabric.plan.compare import Comparison
from kvfabric.plan.sizing import Sizing
from kvfabric.plan.sizing_lines import sizing_lines
from kvfabric.plan.verdict import SAME_WITHIN
from kvfabric.units import GIB


def assumptions(comparison: Comparison) -> Markup:
    """Return the sources, the sizing, the notes of this run, and what is not modelled."""
    notes = _notes(comparison)
    return join(
        pairs(_sources(comparison), class_="sources"),
        *_sizings(comparison),
        join(el("h3", "Notes on this run"), bullets(notes)) if notes else None,
        el("h3", "Not modelled"),
        bullets(plan_not_modelled(comparison.request)),
    )


def _sources(comparison: Comparison) -> Iterator[tuple[str, str]]:
    request, fleet = comparison.request, comparison.fleet
    gpu = request.gpu
    if gpu is not None:
        yield "GPU", f"{gpu.name}, {gpu.source}"
        visible = f"{gpu.visible_bytes / GIB:.2f} GiB"
        yield "Memory an engine can use", f"{visible}, {gpu.visible_source}"
    yield "Step times", f"{fleet.model.source}. Stated error: {stated_error(fleet.model)}"
    reserves = None if fleet.sizing is None else fleet.sizing.memory.reserves_source
    if reserves is not None:
        yield "Memory reserved beside weights and KV", reserves
    yield (
        "Hand-offs on the wire",
        f"RoCEv2 frames: {ROCE_FRAME_BYTES:,} bytes for {ROCE_PAYLOAD_BYTES:,} of payload",
    )
    yield "Links", f"flow engine {request.network.engine}; load is the mean over the run"
    bom = next(d.fabric.bom for d in comparison.designs if d.fabric is not None)
    yield "Prices", f"price book {bom.price_book}, {bom.price_date}; sources with the parts"
    yield "Percentiles", "nearest rank, over requests that finished"
    yield "Equal", f"designs that differ by less than {SAME_WITHIN:.0%} count as equal"
    yield "Seed", f"{request.seed}: the same scenario gives the same report, byte by byte"


def _sizings(comparison: Comparison) -> Iterator[Markup]:
    own, decode = comparison.fleet.sizing, comparison.fleet.decode.sizing
    if decode is not None and own is not None and decode.tp != own.tp:
        yield _sizing("Memory of a decode worker", decode)
        yield _sizing("Memory of a prefill worker", own)
    elif own is not None:
        yield _sizing("Memory of a worker", own)


def _sizing(title: str, sizing: Sizing) -> Markup:
    text = "\n".join(sizing_lines(sizing))
    return join(el("h3", title), el("pre", text, class_="lines"))


def _notes(comparison: Comparison) -> list[str]:
    warnings = [text for design in all_designs(comparison) for text in design.summary.warnings]
    found = dict.fromkeys((*comparison.fleet.notes, *warnings))
    return [f"{note}." for note in found]
