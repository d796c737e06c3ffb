"""The drawings: every cable is told with its load; what failed or is busy stands out."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from plan_requests import GBIT, plain_workload, plan_request
from reports import Element, elements, failed_comparison, plain_comparison, report_of

from kvfabric.export.report.line_figures import NUM_STEPS, step
from kvfabric.export.report.link_figures import CableFigures, cable_figures, whole_of
from kvfabric.export.report.topology_layout import Layout, lay_out
from kvfabric.fabric.build import build_topology
from kvfabric.plan.compare import Comparison, DesignResult, compare

KINDS = (
    "clos", "roft", "rail-only", "multi-plane", "hpn", "zcube", "zcube-recursive", "bcube",
    "dragonfly", "slim-fly", "jellyfish",
)  # fmt: skip


def figures_of(design: DesignResult) -> CableFigures:
    figures = cable_figures(design)
    assert figures is not None
    return figures


def drawn(page: list[Element], design: int, fabric: int, css: str) -> list[Element]:
    prefix = f"f{fabric}d{design}-"
    return [e for e in page if e.get("id").startswith(prefix) and css in e.get("class").split()]


@pytest.fixture(scope="module")
def failed_page() -> list[Element]:
    return elements(report_of(failed_comparison()))


@pytest.mark.parametrize("comparison", [plain_comparison(), failed_comparison()])
def test_figures_agree_with_the_busiest_links_of_the_run(comparison: Comparison) -> None:
    """The run itself lists its five busiest channels (``busiest_links``)."""
    for design in comparison.designs:
        figures = figures_of(design)
        order = np.sort(figures.utilization.ravel())[::-1]
        for place, link in enumerate(design.run.busiest_links):
            assert order[place] == pytest.approx(link.utilization, rel=1e-9)


def test_bytes_into_hosts_are_the_bytes_handed_over() -> None:
    """What hosts receive is what prefill workers sent: nothing is lost on the way (INV-11)."""
    for design in plain_comparison().designs:
        figures = figures_of(design)
        topology = figures.topology
        host = topology.links.end_a < topology.num_gpus
        sent, received = figures.carried_bytes[host, 0].sum(), figures.carried_bytes[host, 1].sum()
        assert sent == pytest.approx(received, rel=1e-9)
        assert sent > 0


def test_failed_cable_keeps_its_place_and_carries_nothing() -> None:
    """GPU 3 lost its only port: its cable is drawn as failed, all others kept their loads."""
    design = failed_comparison().designs[2]
    figures = figures_of(design)
    lost = int(figures.topology.access_links[3, 0])
    assert np.flatnonzero(figures.failed).tolist() == [lost]
    assert figures.carried_bytes[lost].sum() == 0
    assert figures.channel_name(lost, 0).startswith("GPU 3 port 0 -> leaf")


def test_failed_cable_stands_out_by_shape_and_word(failed_page: list[Element]) -> None:
    failed = [e for e in drawn(failed_page, 0, 1, "failed") if e.tag == "path"]
    assert len(failed) == 1
    assert "Failed" in failed[0].text
    words = [e.text for e in failed_page if e.get("class") == "lab failed"]
    assert words == ["\u2715 failed"] * 2  # one per design on that fabric


def test_every_cable_is_told(failed_page: list[Element]) -> None:
    design = failed_comparison().designs[0]
    figures = figures_of(design)
    lines = drawn(failed_page, 0, 0, "e")
    assert len(lines) == figures.topology.num_links
    pattern = re.compile(r"To .+: load [\d.]+%, .+; (never )?paused.*, longest queue .+B\.")
    assert all(pattern.search(line.text) for line in lines)


def test_busiest_link_is_labelled_with_its_load(failed_page: list[Element]) -> None:
    busiest = failed_comparison().designs[0].run.busiest_links[0]
    words = [e.text for e in failed_page if e.get("class") == "lab load"]
    assert words[0] == f"{busiest.utilization:.1%}"


def test_table_of_busy_links_points_into_the_drawing(failed_page: list[Element]) -> None:
    by_id = {e.get("id"): e for e in failed_page if e.get("id")}
    links = [e for e in failed_page if e.get("data-show")]
    assert len(links) == 4 * 5  # five for each of four designs
    for link in links:
        ends = re.sub(r" #\d+", "", link.text).split(" -> ")
        assert all(end.removesuffix(" port 0") in by_id[link.get("data-show")].text for end in ends)


def test_switches_and_servers_are_told(failed_page: list[Element]) -> None:
    switches = drawn(failed_page, 0, 0, "switch")
    topology = figures_of(failed_comparison().designs[0]).topology
    assert len(switches) == topology.num_switches
    assert all("ports used" in switch.text for switch in switches)
    gpus = drawn(failed_page, 0, 0, "host")
    assert len(gpus) == topology.num_gpus
    assert [g.get("class").split()[-1] for g in gpus] == ["prefill"] * 8 + ["decode"] * 8


@pytest.mark.parametrize("num_gpus", [64, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fabric_can_be_laid_out(kind: str, num_gpus: int) -> None:
    """Every cable is in exactly one line or inside one box, every node in exactly one box."""
    topology = build_topology(kind, num_gpus, nic_rate_bps=400 * GBIT)
    layout = lay_out(topology)
    assert sorted(_cables(layout)) == list(range(topology.num_links))
    nodes = [node for box in layout.boxes for node in box.nodes]
    assert sorted(nodes) == list(range(topology.num_gpus + topology.num_switches))
    assert layout.is_full == (num_gpus == 64)
    assert layout.is_full or len(layout.lines) <= 140
    _assert_inside(layout)


def _cables(layout: Layout) -> list[int]:
    groups = [line.links for line in layout.lines] + list(layout.inside.values())
    return [int(link) for links in groups for link in links]


def _assert_inside(layout: Layout) -> None:
    for box in layout.boxes:
        assert 0 <= box.x - box.width / 2 <= box.x + box.width / 2 <= 1000
        assert 0 <= box.y - box.height / 2 <= layout.height


def test_boxes_of_a_row_do_not_overlap() -> None:
    layout = lay_out(build_topology("roft", 1024, nic_rate_bps=400 * GBIT))
    rows: dict[float, list[tuple[float, float]]] = {}
    for box in layout.boxes:
        rows.setdefault(box.y, []).append((box.x - box.width / 2, box.x + box.width / 2))
    for ends in rows.values():
        ends.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(ends))


def test_steps_are_fifths_of_the_highest_value() -> None:
    assert [step(value, 1.0) for value in (0.0, 0.1, 0.2, 0.21, 0.99, 1.0)] == [0, 1, 1, 2, 5, 5]
    assert step(0.3, None) == 0
    assert NUM_STEPS == 5


def test_spray_pools_are_spread_over_their_cables() -> None:
    """Spraying loads all equal-cost cables alike, and as much in sum as any other policy."""
    request = plan_request(
        workload=plain_workload(12), fabrics=("clos",), policies=("spray", "assigned")
    )
    sprayed, assigned = compare(replace(request, compare_aggregated=False)).designs
    a, b = figures_of(sprayed), figures_of(assigned)
    assert a.carried_bytes.shape == (a.topology.num_links, 2)
    assert a.carried_bytes.sum() == pytest.approx(b.carried_bytes.sum(), rel=1e-6)


def test_a_fabric_without_failures_is_drawn_whole() -> None:
    design = plain_comparison().designs[0]
    assert design.fabric is not None
    assert whole_of(design.fabric) is design.fabric.topology


def with_load(design: DesignResult, factor: float) -> DesignResult:
    """Return a design whose links carried several times as much."""
    channels = design.run.channels
    assert channels is not None
    more = replace(channels, carried_bytes=channels.carried_bytes * factor)
    return replace(design, run=replace(design.run, channels=more))


def test_hot_links_stand_out_by_width_color_and_number() -> None:
    """From half of its capacity on a link is hot; the legend says so."""
    comparison = plain_comparison()
    busiest = comparison.designs[0].run.busiest_links[0].utilization
    hot = with_load(comparison.designs[0], 0.8 / busiest)
    page = elements(report_of(replace(comparison, designs=(hot, *comparison.designs[1:]))))
    lines = drawn(page, 0, 0, "hot")
    assert lines
    assert all(float(value) >= 50 for line in lines for value in loads_of(line)[-1:])
    words = [e.text for e in page if e.get("class") == "lab load"]
    assert words[0] == "80.0%"
    assert "hot: 50% or more of the capacity" in [e.text for e in page if e.tag == "li"]
    assert "hot" not in report_of(comparison).split('id="fabrics"')[1].split("</section>")[0]


def loads_of(line: Element) -> list[str]:
    """Return the loads that a line tells, lowest first."""
    return sorted(re.findall(r"load ([\d.]+)%", line.text), key=float)


def test_report_of_many_designs_stays_below_two_megabytes() -> None:
    """42 designs on 64 GPUs: too many to draw every cable of each."""
    comparison = plain_comparison()
    request = plan_request(workload=plain_workload(4), fabrics=("zcube", "hpn"))
    workers = replace(request.workers, num_prefill=8, num_decode=8)
    request = replace(request, workers=workers, compare_aggregated=False)
    designs = compare(request).designs
    many = tuple(
        replace(design, name=f"{design.name} {i}", load_balancing=f"{design.load_balancing} {i}")
        for design in designs
        for i in range(10)
    )
    page = report_of(replace(comparison, request=request, designs=(*many, *designs[:2])))
    assert len(page.encode()) < 2_000_000
