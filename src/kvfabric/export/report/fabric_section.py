"""The fabrics: a drawing per design that can be explored, and its busiest links as a table."""

from collections.abc import Callable, Iterator, Sequence

from kvfabric.export.report.line_figures import (
    NUM_STEPS,
    Measures,
    measures_of,
    most_of,
)
from kvfabric.export.report.link_figures import (
    HOT_FROM,
    CableFigures,
    cable_figures,
    failed_of,
    whole_of,
)
from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import Column, data_table, figure, legend, sample, scroll
from kvfabric.export.report.series import labels
from kvfabric.export.report.topology_drawing import Scene, draw, line_id, worker_of_gpus
from kvfabric.export.report.topology_layout import Layout, lay_out
from kvfabric.export.report.words import plural, sentence
from kvfabric.plan.compare import Comparison, DesignResult, FabricFacts
from kvfabric.units import format_bytes, format_ns, format_rate

_BUSIEST = 5
_ALL_LINES, _LEAST_LINES = 3_000, 40  # of all drawings, so that the page stays below 2 MB


def fabric_parts(comparison: Comparison) -> list[Markup]:
    """Return the legend and one block per fabric; empty without loads to draw."""
    drawn = [(design, cable_figures(design)) for design in comparison.designs]
    known = [(design, figures) for design, figures in drawn if figures is not None]
    if not known:
        return []
    scale = most_of([measures_of(figures) for _, figures in known])
    most_lines = max(_LEAST_LINES, _ALL_LINES // len(known))
    blocks = [
        _block(
            comparison,
            most_lines,
            [pair for pair in known if _label(pair[0]) == label],
            scale,
            place,
        )
        for place, label in enumerate(labels([design for design, _ in known]))
    ]
    return [_legend(scale, [figures for _, figures in known]), *blocks]


def _label(design: DesignResult) -> str:
    assert design.fabric is not None
    return design.fabric.label


def _block(
    comparison: Comparison,
    most_lines: int,
    designs: Sequence[tuple[DesignResult, CableFigures]],
    scale: Measures,
    place: int,
) -> Markup:
    fabric = designs[0][0].fabric
    assert fabric is not None
    layout = lay_out(whole_of(fabric), most_lines)
    scenes = [
        _scene(comparison, fabric, figures, layout, scale, f"f{place}d{number}")
        for number, (_, figures) in enumerate(designs)
    ]
    figures_shown = [
        _figure(design, scene) for (design, _), scene in zip(designs, scenes, strict=True)
    ]
    return el(
        "div",
        el("h3", fabric.label),
        el("p", _facts(fabric, layout), class_="facts"),
        *figures_shown,
        _busiest(designs, scenes),
        class_="fabric-block",
    )


def _scene(
    comparison: Comparison,
    fabric: FabricFacts,
    figures: CableFigures,
    layout: Layout,
    scale: Measures,
    anchor: str,
) -> Scene:
    topology = whole_of(fabric)
    switches = fabric.failures.switches if fabric.failures is not None else frozenset()
    return Scene(
        anchor=anchor,
        layout=layout,
        figures=figures,
        scale=scale,
        workers=worker_of_gpus(comparison.request, topology.num_gpus),
        failed_switches=frozenset(topology.num_gpus + switch for switch in switches),
    )


def _facts(fabric: FabricFacts, layout: Layout) -> str:
    topology = whole_of(fabric)
    num_failed = int(failed_of(fabric).sum())
    text = (
        f"{fabric.topology.name}: {plural(topology.num_switches, 'switch')},"
        f" {plural(topology.num_links, 'cable')}, {format_rate(topology.nic_rate_bps)} per GPU."
    )
    if num_failed:
        text += f" {plural(num_failed, 'cable')} failed."
    if layout.is_full:
        return f"{text} Every GPU and every cable is drawn."
    sizes = [len(line.links) for line in layout.lines]
    least, most = min(sizes), max(sizes)
    count = plural(most, "cable") if least == most else f"{least:,} to {most:,} cables"
    return (
        f"{text} Drawn in groups: a box stands for the servers or switches whose numbers it bears,"
        f" a line for {count}, colored by the busiest of them."
    )


def _figure(design: DesignResult, scene: Scene) -> Markup:
    busiest = design.run.busiest_links[0] if design.run.busiest_links else None
    caption = f"{design.name}: load of every link over {format_ns(design.summary.window_ns)}."
    if busiest is not None and busiest.carried_bytes:
        caption += f" Busiest: {busiest.name}, {busiest.utilization:.1%} of its capacity."
    pressure = design.run.pressure
    if pressure is not None:
        caption += f" {sentence(pressure.sentence())}"
    drawing = draw(scene, f"{design.name}: the fabric with the load of every link")
    wrapped = figure(caption, scroll(drawing), class_="explore")
    return el("div", wrapped, class_="design", data_policy=design.load_balancing or "")


def _busiest(
    designs: Sequence[tuple[DesignResult, CableFigures]], scenes: Sequence[Scene]
) -> Markup:
    knows_pauses = designs[0][1].paused_share is not None
    columns = [
        Column("Link", is_text=True),
        Column("Load balancing", is_text=True),
        Column("Load", "%"),
        Column("Carried", "GB"),
    ]
    if knows_pauses:
        columns += [Column("Paused", "% of time"), Column("Longest queue", "kB")]
    rows = [
        row
        for (design, figures), scene in zip(designs, scenes, strict=True)
        for row in _busiest_rows(design, figures, scene)
    ]
    return data_table("Busiest links of each design, by load over the run", columns, rows)


def _busiest_rows(
    design: DesignResult, figures: CableFigures, scene: Scene
) -> Iterator[list[object]]:
    flat = figures.utilization.ravel()
    for channel in (-flat).argsort(kind="stable")[:_BUSIEST].tolist():
        link, direction = divmod(channel, 2)
        if not flat[channel]:
            return
        name = el("span", figures.channel_name(link, direction), data_show=line_id(scene, link))
        row: list[object] = [
            name,
            design.load_balancing or "",
            f"{100 * flat[channel]:.1f}",
            f"{figures.carried_bytes[link, direction] / 1e9:,.1f}",
        ]
        if figures.paused_share is not None and figures.peak_queue_bytes is not None:
            row.append(f"{100 * figures.paused_share[link, direction]:.1f}")
            row.append(f"{figures.peak_queue_bytes[link, direction] / 1e3:,.0f}")
        yield row


def _legend(scale: Measures, figures: Sequence[CableFigures]) -> Markup:
    has_failed = any(one.failed.any() for one in figures)
    has_hot = any((one.utilization >= HOT_FROM).any() for one in figures)
    entries = [*_steps(scale.load, "u", "load", lambda value: f"{value:.1%}")]
    if has_hot:
        entries.append((_stroke("e u5 hot"), f"hot: {HOT_FROM:.0%} or more of the capacity"))
    if has_failed:
        entries.append((_stroke("e failed"), "failed"))
    blocks = [el("div", legend(entries), class_="keys load")]
    if scale.paused is not None and scale.queue is not None:
        paused = _steps(scale.paused, "p", "paused", lambda value: f"{value:.1%}")
        queues = _steps(scale.queue, "q", "queue", lambda value: format_bytes(round(value)))
        blocks.append(el("div", legend(paused), class_="keys paused"))
        blocks.append(el("div", legend(queues), class_="keys queue"))
    lead = (
        "Color and width follow the busier direction of each link, on one scale for all drawings."
        " P: prefill worker, D: decode worker."
    )
    return join(el("p", lead), *blocks)


def _steps(
    highest: float, prefix: str, what: str, show: Callable[[float], str]
) -> Iterator[tuple[Markup, str]]:
    yield _stroke(f"e {prefix}0"), f"no {what}"
    if highest:
        for number in range(1, NUM_STEPS + 1):
            low, high = (show(highest * n / NUM_STEPS) for n in (number - 1, number))
            text = f"{what} up to {high}" if number == 1 else f"{low} to {high}"
            yield _stroke(f"e {prefix}{number}"), text


def _stroke(css: str) -> Markup:
    return sample(el("path", class_=css, d="M1 7H27"))
