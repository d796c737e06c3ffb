"""Price against the tail of the time to first token, with the range of every price."""

from collections.abc import Callable, Iterator, Sequence

from kvfabric.export.report.markup import Markup, el
from kvfabric.export.report.parts import chart, figure, legend, sample, scroll
from kvfabric.export.report.scales import Frame, Scale, from_zero, x_axis, y_axis
from kvfabric.export.report.series import Look, labels, looks, marker
from kvfabric.export.report.words import short, time_axis, usd
from kvfabric.plan.bom import Cost
from kvfabric.plan.compare import Comparison, DesignResult
from kvfabric.units import format_ns

_WIDTH, _PLOT, _LANE = 720.0, 300.0, 24.0


def cost_figure(comparison: Comparison) -> Markup | None:
    """Return a point per design over lanes with the price ranges, or None if nothing finished."""
    designs = [d for d in comparison.designs if d.summary.ttft.p99_ns is not None]
    if not designs:
        return None
    costs = _costs(designs)
    height = _PLOT + _LANE * len(costs) + 62
    longest = _longest(comparison, designs)
    x = from_zero(max(cost.high_usd for cost in costs.values()), 64, _WIDTH - 40)
    plot = Frame(x, from_zero(longest, _PLOT, 36))
    unit, show_time = time_axis(longest)
    show_usd, usd_unit = usd_axis(x.high)
    whole = Frame(x, Scale(0, 1, height - 52, _PLOT))
    look = looks(comparison)
    drawing = chart(
        "cost",
        "Price of the fabric against the p99 of the time to first token",
        _description(designs, costs),
        (_WIDTH, height),
        y_axis(plot, f"TTFT p99 ({unit})", show_time),
        el("line", class_="axis", x1=x.start, x2=x.end, y1=_PLOT, y2=_PLOT),
        x_axis(whole, f"Price of the fabric, NICs included ({usd_unit})", show_usd),
        *_drop_lines(designs, costs, plot),
        *(_point(d, costs, plot, look[d.name]) for d in designs),
        *_aggregated(comparison, plot),
        *_lanes(costs, designs, x, look),
    )
    caption = (
        "Points at typical prices; bars below run from the lowest to the highest price in the book,"
        " with a tick at the typical one."
    )
    return figure(caption, scroll(drawing), legend(_policies(designs, look)))


def _costs(designs: Sequence[DesignResult]) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    for design in designs:
        if design.fabric is not None:
            found.setdefault(design.fabric.label, design.fabric.bom.cost())
    return found


def _longest(comparison: Comparison, designs: Sequence[DesignResult]) -> float:
    alone = comparison.aggregated
    values = [design.summary.ttft.p99_ns or 0 for design in designs]
    values.append((alone.summary.ttft.p99_ns or 0) if alone is not None else 0)
    return float(max(values))


def _label(design: DesignResult) -> str:
    assert design.fabric is not None
    return design.fabric.label


def _point(design: DesignResult, costs: dict[str, Cost], plot: Frame, look: Look) -> Markup:
    cost, p99_ns = costs[_label(design)], design.summary.ttft.p99_ns
    assert p99_ns is not None
    x, y = plot.point(cost.typical_usd, float(p99_ns))
    words = f"{design.name}: ${usd(cost.typical_usd)}, TTFT p99 {format_ns(p99_ns)}"
    return el("g", el("title", words), look.marker(x, y))


def _drop_lines(
    designs: Sequence[DesignResult], costs: dict[str, Cost], plot: Frame
) -> Iterator[Markup]:
    for label, cost in costs.items():
        highest = max(d.summary.ttft.p99_ns or 0 for d in designs if _label(d) == label)
        x, y = plot.point(cost.typical_usd, float(highest))
        yield el("line", class_="drop", x1=x, x2=x, y1=y, y2=plot.y.start)


def _aggregated(comparison: Comparison, plot: Frame) -> Iterator[Markup]:
    alone = comparison.aggregated
    if alone is None or alone.summary.ttft.p99_ns is None:
        return
    y = plot.y.at(float(alone.summary.ttft.p99_ns))
    yield el("line", class_="level", x1=plot.x.start, x2=plot.x.end, y1=y, y2=y)
    text = f"aggregated, without hand-offs: {format_ns(alone.summary.ttft.p99_ns)}"
    yield el("text", text, class_="mark", x=plot.x.start + 6, y=y - 6)


def _lanes(
    costs: dict[str, Cost], designs: Sequence[DesignResult], x: Scale, look: dict[str, Look]
) -> Iterator[Markup]:
    for lane, (label, cost) in enumerate(costs.items()):
        y = _PLOT + 18 + lane * _LANE
        css = look[next(d.name for d in designs if _label(d) == label)].css
        low, typical, high = (x.at(v) for v in (cost.low_usd, cost.typical_usd, cost.high_usd))
        words = f"{label}: ${usd(cost.low_usd)} to ${usd(cost.high_usd)}"
        bar = f"M{low:.1f} {y:.1f}H{high:.1f}M{low:.1f} {y - 5:.1f}v10M{high:.1f} {y - 5:.1f}v10"
        yield el("path", el("title", words), class_=f"whisker {css}", d=bar)
        yield el("path", class_=f"whisker typical {css}", d=f"M{typical:.1f} {y - 7:.1f}v14")
        is_left = low > 190
        yield el(
            "text",
            label,
            class_="name",
            x=low - 10 if is_left else high + 10,
            y=y + 4.5,
            text_anchor="end" if is_left else "start",
        )


def _policies(
    designs: Sequence[DesignResult], look: dict[str, Look]
) -> Iterator[tuple[Markup, str]]:
    seen: dict[str, int] = {}
    for design in designs:
        seen.setdefault(design.load_balancing or "", look[design.name].pattern)
    for policy, shape in seen.items():
        yield sample(marker(shape, 14, 7, "dot c0"), width=28), policy


def usd_axis(highest: float) -> tuple[Callable[[float], str], str]:
    """Return how ticks of an axis of prices are written, and their unit."""
    if highest >= 1e6:
        return (lambda value: short(value / 1e6)), "million USD"
    return (lambda value: short(value / 1e3)), "thousand USD"


def _description(designs: Sequence[DesignResult], costs: dict[str, Cost]) -> str:
    parts = []
    for label in labels(designs):
        cost = costs[label]
        times = ", ".join(
            f"{d.load_balancing} {format_ns(d.summary.ttft.p99_ns or 0)}"
            for d in designs
            if _label(d) == label
        )
        parts.append(
            f"{label}: ${usd(cost.typical_usd)} (${usd(cost.low_usd)} to ${usd(cost.high_usd)}),"
            f" TTFT p99 {times}"
        )
    return "; ".join(parts) + "."
