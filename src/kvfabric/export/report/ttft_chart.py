"""Distribution of the time to first token: the share of requests served within a time."""

from collections.abc import Sequence

from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import Column, chart, data_table, figure, legend, more, scroll
from kvfabric.export.report.scales import Frame, Scale, from_zero, polyline, x_axis, y_axis
from kvfabric.export.report.series import Look, all_designs, looks
from kvfabric.export.report.words import ms, short, time_axis
from kvfabric.plan.compare import TTFT_PERCENTS, Comparison, DesignResult

LOG_ABOVE = 30
"""Longest over shortest time from which the time axis is logarithmic."""

SAME_WITHIN = 0.01
"""Curves that nowhere differ by more than this share of the axis are drawn as one."""

_WIDTH, _HEIGHT = 720.0, 380.0
_SHOWN_PERCENTS = (0, 10, 25, 50, 75, 90, 95, 99, 100)


def ttft_figure(comparison: Comparison) -> Markup | None:
    """Return the curves of all designs, or None if nothing finished."""
    designs = [design for design in all_designs(comparison) if design.run.ttft_quantiles_ns]
    if not designs:
        return None
    look = looks(comparison)
    frame, unit = _frame(designs)
    groups = alike(designs, frame)
    title = f"Time to first token ({unit}{', logarithmic' if frame.x.is_log else ''})"
    _, show = time_axis(max(design.run.ttft_quantiles_ns[-1] for design in designs))
    drawing = chart(
        "ttft",
        "Distribution of the time to first token",
        _description(designs),
        (_WIDTH, _HEIGHT),
        y_axis(frame, "Requests served (%)", short),
        x_axis(frame, title, show),
        *_target(comparison, frame),
        *(_curve(group[0], look[group[0].name], frame) for group in reversed(groups)),
    )
    entries = [(look[group[0].name].line_sample(), _names(group)) for group in groups]
    caption = "Each curve: the share of finished requests whose first token came within that time."
    return figure(caption, scroll(drawing), legend(entries), more("Numbers", _table(designs)))


def alike(designs: Sequence[DesignResult], frame: Frame) -> list[list[DesignResult]]:
    """Return designs in groups whose curves would lie on each other."""
    groups: list[list[DesignResult]] = []
    for design in designs:
        for group in groups:
            if _is_same(group[0], design, frame):
                group.append(design)
                break
        else:
            groups.append([design])
    return groups


def _is_same(one: DesignResult, other: DesignResult, frame: Frame) -> bool:
    at, room = frame.x.at, SAME_WITHIN * (frame.x.end - frame.x.start)
    both = zip(one.run.ttft_quantiles_ns, other.run.ttft_quantiles_ns, strict=True)
    return all(abs(at(float(a)) - at(float(b))) <= room for a, b in both)


def _names(group: Sequence[DesignResult]) -> str:
    names = ", ".join(design.name for design in group)
    return f"{names} (lie on each other)" if len(group) > 1 else names


def _frame(designs: Sequence[DesignResult]) -> tuple[Frame, str]:
    longest = max(design.run.ttft_quantiles_ns[-1] for design in designs)
    shortest = min(design.run.ttft_quantiles_ns[0] for design in designs)
    left, right = 58.0, _WIDTH - 24
    if shortest > 0 and longest > LOG_ABOVE * shortest:
        x = Scale(shortest * 0.9, longest * 1.1, left, right, is_log=True)
    else:
        x = from_zero(longest, left, right)
    return Frame(x, Scale(0, 100, _HEIGHT - 52, 36)), time_axis(longest)[0]


def _curve(design: DesignResult, look: Look, frame: Frame) -> Markup:
    points = [
        frame.point(float(value_ns), float(percent))
        for percent, value_ns in zip(TTFT_PERCENTS, design.run.ttft_quantiles_ns, strict=True)
    ]
    return el("path", class_=f"line {look.css}", d=polyline(points), stroke_dasharray=look.dash)


def _target(comparison: Comparison, frame: Frame) -> list[Markup]:
    target_ns = comparison.request.slo.ttft_ns
    if target_ns is None or not frame.x.low <= target_ns <= frame.x.high:
        return []
    at = frame.x.at(float(target_ns))
    is_right = at > _WIDTH * 0.75
    text = el(
        "text",
        "target",
        class_="mark",
        x=at + (-6 if is_right else 6),
        y=frame.y.start - 8,
        text_anchor="end" if is_right else "start",
    )
    line = el("line", class_="target", x1=at, x2=at, y1=frame.y.end, y2=frame.y.start)
    return [join(line, text)]


def _description(designs: Sequence[DesignResult]) -> str:
    parts = (
        f"{design.name}: half within {ms(design.run.ttft_quantiles_ns[50])} ms, 99 % within"
        f" {ms(design.run.ttft_quantiles_ns[99])} ms"
        for design in designs
    )
    return "; ".join(parts) + "."


def _table(designs: Sequence[DesignResult]) -> Markup:
    heads = {0: "least", 100: "most"}
    columns = [
        Column("Design", is_text=True),
        *(Column(heads.get(p, f"p{p}"), "ms") for p in _SHOWN_PERCENTS),
    ]
    rows = [[d.name, *(ms(d.run.ttft_quantiles_ns[p]) for p in _SHOWN_PERCENTS)] for d in designs]
    return data_table("Time to first token at percentiles (nearest rank)", columns, rows)
