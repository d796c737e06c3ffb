"""The charts: what they draw is what the runs gave, and their axes are round."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from reports import Element, elements, plain_comparison, report_of

from kvfabric.export.report.kv_chart import capacities, kv_figure, user_counts
from kvfabric.export.report.markup import Markup, el, join, px
from kvfabric.export.report.scales import Frame, Scale, from_zero, nice_step, polyline
from kvfabric.export.report.sensitivity_chart import sensitivity_figure
from kvfabric.export.report.stage_chart import STAGES, stage_figure
from kvfabric.export.report.ttft_chart import alike, ttft_figure
from kvfabric.metrics.summary import summarize
from kvfabric.plan.compare import TTFT_PERCENTS, Comparison
from kvfabric.plan.verdict import judge


def drawn(markup: Markup | None) -> list[Element]:
    assert markup is not None
    return elements(str(markup))


def with_css(page: list[Element], css: str) -> list[Element]:
    return [element for element in page if css in element.get("class").split()]


# ------------------------------------------------------------------------------ markup


def test_everything_but_markup_is_escaped() -> None:
    shown = el("p", "<b>", el("i", "&"), title='"<')
    assert shown == '<p title="&quot;&lt;">&lt;b&gt;<i>&amp;</i></p>'
    assert join("<", Markup("<")) == "&lt;<"


def test_attributes_are_left_out_or_bare() -> None:
    assert el("rect", x=1.25, hidden=True, y=None, class_="a", data_show="b") == (
        '<rect x="1.2" hidden class="a" data-show="b"/>'
    )


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (-0.04, "0"), (10.0, "10"), (2.66, "2.7")])
def test_coordinates_are_short(value: float, text: str) -> None:
    assert px(value) == text


# ------------------------------------------------------------------------------ axes


@pytest.mark.parametrize(("rough", "step"), [(1, 1), (1.01, 2), (2.1, 5), (5.1, 10), (0.03, 0.05)])
def test_steps_are_one_two_or_five(rough: float, step: float) -> None:
    assert nice_step(rough) == pytest.approx(step)


@pytest.mark.parametrize("highest", [0.003, 1, 7.1, 99, 123_456])
def test_linear_axis_ends_at_a_tick_above_the_data(highest: float) -> None:
    scale = from_zero(highest, 0, 100)
    assert scale.high >= highest
    assert scale.at(0) == 0
    assert scale.at(scale.high) == 100
    assert scale.ticks(5)[-1] == pytest.approx(scale.high)


def test_logarithmic_axis_spaces_decades_alike() -> None:
    scale = Scale(1, 1000, 0, 300, is_log=True)
    assert [round(scale.at(v), 6) for v in (1, 10, 100, 1000)] == [0, 100, 200, 300]
    assert scale.ticks() == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert Scale(1, 1e9, 0, 1, is_log=True).ticks()[:3] == [1, 10, 100]


def test_line_leaves_out_points_on_each_other() -> None:
    assert polyline([(0, 0), (0.01, 0), (5, 5)]) == "M0.0 0.0L5.0 5.0"


# ------------------------------------------------------------------------------ TTFT


def test_quantiles_of_the_run_agree_with_its_summary() -> None:
    for design in plain_comparison().designs:
        quantiles = design.run.ttft_quantiles_ns
        assert len(quantiles) == len(TTFT_PERCENTS)
        assert list(quantiles) == sorted(quantiles)
        ttft = design.summary.ttft
        assert (quantiles[50], quantiles[90], quantiles[99]) == (
            ttft.p50_ns, ttft.p90_ns, ttft.p99_ns,
        )  # fmt: skip


def test_curves_of_all_designs_are_named() -> None:
    page = drawn(ttft_figure(plain_comparison()))
    names = " ".join(element.text for element in page if element.tag == "li")
    for design in plain_comparison().designs:
        assert design.name in names
    assert "aggregated" in names
    assert len(with_css(page, "line")) == 2 * len([e for e in page if e.tag == "li"])


def test_equal_curves_are_drawn_once() -> None:
    designs = list(plain_comparison().designs)
    frame = Frame(Scale(0, 1e9, 0, 700), Scale(0, 100, 0, 300))
    same = [designs[0], replace(designs[0], name="twin")]
    assert [len(group) for group in alike(same, frame)] == [2]
    slow = tuple(value + 50_000_000 for value in designs[0].run.ttft_quantiles_ns)
    other = replace(designs[0], run=replace(designs[0].run, ttft_quantiles_ns=slow))
    assert [len(group) for group in alike([*same, other], frame)] == [2, 1]


def test_bars_have_the_length_of_their_stages() -> None:
    """Widths are in proportion to the parts, and the parts sum to the mean TTFT."""
    page = drawn(stage_figure(plain_comparison()))
    design = plain_comparison().designs[0]
    split = design.summary.ttft_split_mean
    assert split is not None
    assert split.total_ns == design.summary.ttft.mean_ns
    bars = [e for e in page if e.tag == "rect" and e.path[-1] == "g"]
    mean = [bar for bar in bars if bar.get("y") == bars[0].get("y")]
    parts = dict(zip(STAGES, split.as_parts_ns(), strict=True))
    ns_per_px = split.total_ns / sum(float(bar.get("width")) for bar in mean)
    for bar in mean:
        name = bar.text.split(":")[0]
        assert float(bar.get("width")) * ns_per_px == pytest.approx(
            parts[name], abs=0.2 * ns_per_px
        )


# ------------------------------------------------------------------------------ KV cache


def test_users_go_in_powers_of_ten() -> None:
    assert user_counts(1) == [1]
    assert user_counts(10) == [1, 10]
    assert user_counts(100) == [1, 10, 100]
    assert user_counts(250) == [1, 10, 100, 250]


def test_capacities_are_those_of_the_sizing() -> None:
    comparison = plain_comparison()
    sizing = comparison.fleet.decode.sizing
    assert sizing is not None
    gpu, worker, fleet = capacities(comparison, sizing)
    assert gpu.num_bytes == sizing.request.gpu.visible_bytes
    assert worker.num_bytes == 4 * sizing.memory.kv_bytes_per_gpu  # TP4
    assert fleet.num_bytes == 2 * worker.num_bytes  # two decode workers


def test_asked_point_lies_on_its_curve() -> None:
    """10 users x 4,000 tokens x 131,072 B/token, on the line of 10 users."""
    page = drawn(kv_figure(plain_comparison()))
    dot = with_css(page, "dot")[0]
    assert "asked: 4,000 tokens, 5.243 GB" in dot.text
    curve = next(e for e in with_css(page, "line") if "c1" in e.get("class"))
    points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", curve.get("d")) if pair]
    x, y = float(dot.get("cx")), float(dot.get("cy"))
    (x1, y1), (x2, y2) = next((a, b) for a, b in pairwise(points) if a[0] <= x <= b[0])
    assert y == pytest.approx(y1 + (y2 - y1) * (x - x1) / (x2 - x1), abs=0.3)


# ------------------------------------------------------------------------------ prices


def test_ranking_of_prices_is_told_for_neighbors() -> None:
    page = drawn(sensitivity_figure(plain_comparison()))
    sentences = [element.text for element in page if element.tag == "li"]
    assert len(sentences) == 1  # two fabrics
    assert "at typical prices" in sentences[0]


# ------------------------------------------------------------------------------ nothing to show


def nothing_served() -> Comparison:
    """Return the plan as if not a single request had finished."""
    comparison = plain_comparison()
    empty = summarize([], 16, comparison.request.slo)
    designs = tuple(
        replace(d, run=replace(d.run, summary=empty, ttft_quantiles_ns=(), busiest_links=()))
        for d in comparison.designs
    )
    return replace(comparison, designs=designs, aggregated=None)


def test_report_of_a_plan_that_served_nothing() -> None:
    comparison = nothing_served()
    page = elements(report_of(comparison))
    shown = [element.get("id") for element in page if element.tag == "section"]
    assert "ttft-section" not in shown
    assert "cost-section" not in shown
    assert judge(comparison)[0].text in [e.text for e in page if e.tag == "dd"]
    assert not any("nan" in e.get("d") for e in page)
    assert math.isfinite(len(page))
