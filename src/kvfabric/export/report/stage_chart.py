"""Where the time to first token goes: one bar of stages for the mean, one for the tail."""

from collections.abc import Iterator, Sequence

from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import (
    Column,
    chart,
    data_table,
    figure,
    legend,
    more,
    sample,
    scroll,
)
from kvfabric.export.report.scales import Frame, Scale, from_zero, x_axis
from kvfabric.export.report.series import all_designs
from kvfabric.export.report.words import MISSING, ms, time_axis
from kvfabric.metrics.latency import TtftSplit
from kvfabric.plan.compare import Comparison, DesignResult

STAGES = ("router", "prefill queue", "prefill", "waiting for blocks", "wire", "first step")

_WIDTH, _LEFT, _BAR, _BLOCK = 720.0, 52.0, 17.0, 68.0
_TEXT_FROM = 44.0  # pixels that a number needs inside a bar


def stage_figure(comparison: Comparison) -> Markup | None:
    """Return the stages of all designs, or None if no request passed all of them."""
    designs = [d for d in all_designs(comparison) if d.summary.ttft_split_mean is not None]
    if not designs:
        return None
    longest = max(split.total_ns for design in designs for _, split in _splits(design))
    height = len(designs) * _BLOCK + 60
    scale = from_zero(float(longest), _LEFT, _WIDTH - 70)
    frame = Frame(scale, Scale(0, 1, height - 50, 6))
    unit, show = time_axis(float(longest))
    drawing = chart(
        "stages",
        "Stages of the time to first token",
        _description(designs),
        (_WIDTH, height),
        x_axis(frame, f"Time to first token ({unit})", show),
        *(_block(design, scale, 10 + i * _BLOCK) for i, design in enumerate(designs)),
    )
    entries = [(_swatch(stage), name) for stage, name in enumerate(STAGES)]
    caption = (
        "Mean over all finished requests, and over those at or above the p99 of the time to first"
        " token. Numbers in ms."
    )
    return figure(caption, legend(entries), scroll(drawing), more("Numbers", _table(designs)))


def _splits(design: DesignResult) -> Iterator[tuple[str, TtftSplit]]:
    summary = design.summary
    for name, split in (("mean", summary.ttft_split_mean), ("p99", summary.ttft_split_p99)):
        if split is not None:
            yield name, split


def _swatch(stage: int) -> Markup:
    return sample(el("rect", class_=f"stage s{stage}", x=0, y=1, width=14, height=12), width=14)


def _block(design: DesignResult, scale: Scale, top: float) -> Markup:
    parts = [el("text", design.name, class_="name", x=_LEFT, y=top + 13)]
    for position, (name, split) in enumerate(_splits(design)):
        y = top + 20 + position * (_BAR + 4)
        parts.append(el("text", name, class_="tick", x=_LEFT - 8, y=y + 13, text_anchor="end"))
        parts.extend(_bar(split, scale, y))
    return el("g", *parts)


def _bar(split: TtftSplit, scale: Scale, y: float) -> Iterator[Markup]:
    at_ns = 0
    for stage, part_ns in enumerate(split.as_parts_ns()):
        left, right = scale.at(at_ns), scale.at(at_ns + part_ns)
        at_ns += part_ns
        if right - left < 0.3:
            continue
        hint = el("title", f"{STAGES[stage]}: {ms(part_ns)} ms")
        shape = el(
            "rect", hint, class_=f"stage s{stage}", x=left, y=y, width=right - left, height=_BAR
        )
        yield shape
        if right - left >= _TEXT_FROM:
            middle = (left + right) / 2
            css = f"inside t{stage}"
            yield el("text", _whole(part_ns), class_=css, x=middle, y=y + 13, text_anchor="middle")
    yield el("text", _whole(at_ns), class_="tick total", x=scale.at(at_ns) + 6, y=y + 13)


def _whole(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:,.0f}" if duration_ns >= 10_000_000 else ms(duration_ns)


def _description(designs: Sequence[DesignResult]) -> str:
    parts = []
    for design in designs:
        for name, split in _splits(design):
            total = split.total_ns or 1
            share = ", ".join(
                f"{stage} {100 * part / total:.0f} %"
                for stage, part in zip(STAGES, split.as_parts_ns(), strict=True)
                if part
            )
            parts.append(f"{design.name}, {name} {ms(split.total_ns)} ms: {share}")
    return "; ".join(parts) + "."


def _table(designs: Sequence[DesignResult]) -> Markup:
    columns = [
        Column("Design", is_text=True),
        Column("Over", is_text=True),
        *(Column(stage, "ms") for stage in STAGES),
        Column("sum", "ms"),
    ]
    rows = [
        [design.name, name, *map(ms, split.as_parts_ns()), ms(split.total_ns)]
        for design in designs
        for name, split in _splits(design)
    ]
    return join(data_table("Stages of the time to first token", columns, rows))


def wire_share(split: TtftSplit | None) -> str:
    """Return the wire's part of the time to first token in percent."""
    if split is None or not split.total_ns:
        return MISSING
    return f"{100 * split.wire_ns / split.total_ns:.1f}"
