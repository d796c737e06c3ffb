"""``kvfabric plan --html``, ``--out`` and ``--prices`` as a user runs them."""

import json
from pathlib import Path

import pytest
from command import TINY, run
from reports import elements

Capture = pytest.CaptureFixture[str]
PRICES = "name: our offer\nprices:\n  6.4t: {low: 4000, typical: 5000, high: 5500}\n"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("name: tiny", "name: <script>alert(1)</script>"), "utf-8")
    return path


def plan(capsys: Capture, *arguments: object) -> str:
    ran = run(capsys, "plan", "--jobs", "1", *map(str, arguments))
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def section(page: str, anchor: str) -> str:
    start = page.index(f'<section id="{anchor}"')
    return page[start : page.index("</section>", start)]


def test_report_is_written_beside_the_text(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    """The text stays the same; the folder gets everything; both reports are the same bytes."""
    alone = plan(capsys, tiny)
    html, out = tmp_path / "report.html", tmp_path / "results"
    assert plan(capsys, tiny, "--html", html, "--out", out) == alone
    assert html.read_bytes() == (out / "report.html").read_bytes()
    assert (out / "plan.txt").read_text("utf-8") == alone
    lists = {f"{kind}-{name}" for kind in ("clos", "roft", "zcube") for name in FABRIC_FILES}
    names = {path.name for path in out.iterdir()}
    assert names == {"plan.txt", "plan.json", "report.html"} | lists
    page = elements(html.read_text("utf-8"))
    assert [e.text for e in page if e.tag == "h1"] == ["<script>alert(1)</script>"]


FABRIC_FILES = ("bom.csv", "wiring.csv", "wiring.xlsx")


def test_report_says_the_figures_of_the_text(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    html = tmp_path / "report.html"
    answer = json.loads(plan(capsys, tiny, "--html", html, "--format", "json"))
    page = elements(html.read_text("utf-8"))
    cells = [e.text for e in page if e.tag == "td"]
    for design in [*answer["designs"], answer["aggregated"]]:
        assert f"{design['ttft']['p99_ns'] / 1e6:,.1f}" in cells
    said = [e.text for e in page if e.tag == "dd"]
    assert [v["text"] for v in answer["verdicts"]] == said[: len(answer["verdicts"])]


def test_scenario_in_the_report_gives_the_same_figures(
    tiny: Path, tmp_path: Path, capsys: Capture
) -> None:
    first, second, copy = (tmp_path / name for name in ("a.html", "b.html", "scenario.yaml"))
    plan(capsys, tiny, "--seed", 3, "--html", first)
    code = [e.text for e in elements(first.read_text("utf-8")) if e.tag == "code"]
    copy.write_text(code[1], "utf-8")
    plan(capsys, copy, "--html", second)
    pages = [path.read_text("utf-8") for path in (first, second)]
    without = [page.replace(section(page, "scenario"), "") for page in pages]
    assert without[0] == without[1]


def test_own_prices_are_used_and_named(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    prices, html = tmp_path / "prices.yaml", tmp_path / "report.html"
    prices.write_text(PRICES, "utf-8")
    public = json.loads(plan(capsys, tiny, "--format", "json"))
    own = json.loads(plan(capsys, tiny, "--format", "json", "--prices", prices, "--html", html))
    for before, after in zip(public["designs"], own["designs"], strict=True):
        # 6,000 USD each in the public book, and every switch here is of that class
        saved = before["cost_typical_usd"] - after["cost_typical_usd"]
        assert saved == 1_000 * before["switches"]
    page = html.read_text("utf-8")
    assert "Your own prices: 6.4t." in section(page, "parts")
    assert "our offer" in section(page, "parts")
    assert json.dumps(str(prices)) in plan(capsys, tiny, "--show", "--prices", prices)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--html", "nowhere/report.html"], "there is no folder"),
        (["--html", "."], ". is a folder"),
        (["--prices", "missing.yaml"], "cannot read the price book missing.yaml"),
    ],
)
def test_mistakes_are_told_before_the_run(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ran = run(capsys, "plan", *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert arguments[0] in ran.err
    assert len(ran.err.splitlines()) <= 2
