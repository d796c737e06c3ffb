"""The report in a real browser: nothing is fetched, no error, usable by keyboard, dark, on paper.

Needs Chromium (Debian: ``apt-get install chromium``) and playwright; is skipped without them.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reports import EVIL, failed_comparison, report_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AA = 4.5  # WCAG 2.2, 1.4.3: contrast of text
MS = 120_000

# Contrast of every text with the background behind it, by the formula of WCAG 2.2.
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    if (!own || !node.checkVisibility() || node.matches("title, desc, script, .inside")) continue;
    const style = getComputedStyle(node);
    const front = rgb(node.ownerSVGElement ? style.fill : style.color);
    const box = node.matches(".n text") && node.parentElement.querySelector(".body");
    const back = box && !node.matches(".worker") ? rgb(getComputedStyle(box).fill) : behind(node);
    const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), node.textContent.slice(0, 40), node.className]);
  }
  return found.map(([ratio, text, css]) => [ratio, text, String(css.baseVal ?? css)]);
}"""


@dataclass
class Opened:
    """A page with everything that it asked for or complained about."""

    page: "Page"
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for found in map(shutil.which, _NAMES) if found), None)
    if path is None:
        pytest.skip("no Chromium found; Debian has it as the package chromium")
    with sync_api.sync_playwright() as playwright:
        # the sandbox needs rights that containers seldom give; the page is our own
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_of(failed_comparison()), "utf-8")
    return path


Open = Callable[..., Opened]


@pytest.fixture
def open_report(browser: "Browser", report: Path) -> Iterator[Open]:
    contexts = []

    def opened(width: int = 1280, **settings: Any) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **settings
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(MS)
        found = Opened(page)
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: found.complaints.append(dialog.message))
        page.goto(report.as_uri())
        return found

    yield opened
    for context in contexts:
        context.close()


def test_nothing_but_the_file_is_asked_for(open_report: Open, report: Path) -> None:
    found = open_report()
    for name in ("Zoom in", "Pauses", "Dark colors"):
        found.page.get_by_role("button", name=name).first.click()
    assert [url for url in found.requests if not url.startswith("data:")] == [report.as_uri()]
    assert found.complaints == []
    assert found.page.inner_text("h1") == EVIL


def test_keyboard_reaches_a_link_and_shows_its_details(open_report: Open) -> None:
    page = open_report().page
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "canvas":
            break
    details = page.locator(".details").first
    page.keyboard.press("ArrowRight")
    busiest = failed_comparison().designs[0].run.busiest_links[0]
    assert f"load {busiest.utilization:.1%}" in details.inner_text()
    assert "paused" in details.inner_text()
    first = details.inner_text()
    page.keyboard.press("ArrowRight")
    assert details.inner_text() != first
    page.keyboard.press("ArrowDown")
    assert "ports used" in details.inner_text()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_drawing_zooms_by_key_and_returns(open_report: Open) -> None:
    page = open_report().page
    canvas = page.locator(".canvas").first
    canvas.focus()
    whole = page.locator("svg.fabric").first.get_attribute("viewBox")
    page.keyboard.press("+")
    assert page.locator("svg.fabric").first.get_attribute("viewBox") != whole
    page.keyboard.press("Escape")
    box = [float(v) for v in (whole or "").split()]
    shown = page.locator("svg.fabric").first.get_attribute("viewBox") or ""
    assert [float(v) for v in shown.split()] == box


def test_pointer_shows_what_it_is_over(open_report: Open) -> None:
    page = open_report().page
    switch = page.locator("svg.fabric .n.switch").first
    switch.scroll_into_view_if_needed()
    switch.hover()
    assert "ports used" in page.locator(".details").first.inner_text()


def test_table_of_busy_links_leads_to_the_drawing(open_report: Open) -> None:
    page = open_report().page
    page.locator(".data .show").nth(6).click()  # the second policy's second link
    assert page.evaluate("document.activeElement.className") == "canvas"
    assert page.locator(".design").nth(1).is_visible()
    assert page.locator(".details").nth(1).inner_text().startswith(("leaf", "GPU", "spine"))


def test_tables_sort_and_say_so(open_report: Open) -> None:
    page = open_report().page
    table = page.locator("#comparison table").first
    head = table.locator("thead tr:last-child th").nth(1)
    column = table.locator("tbody td:nth-child(2)")
    head.get_by_role("button").click()
    values = [float(text.replace(",", "")) for text in column.all_inner_texts()]
    assert values == sorted(values)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    values = [float(text.replace(",", "")) for text in column.all_inner_texts()]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(open_report: Open, scheme: str) -> None:
    page = open_report(color_scheme=scheme).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = page.evaluate(CONTRASTS)
    assert len(found) > 300
    assert [entry for entry in found if entry[0] < AA] == []


def test_dark_follows_the_system_and_the_button(open_report: Open) -> None:
    page = open_report(color_scheme="dark").page
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Light colors").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)" != dark


def test_print_is_black_on_white_with_everything_open(open_report: Open) -> None:
    page = open_report(color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    style = "(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle("
    white, black = page.evaluate(f"{style}document.body))")
    assert (white, black) == ("rgb(255, 255, 255)", "rgb(27, 27, 27)")
    assert page.locator(".design:visible").count() == 4
    assert page.locator(".bar:visible").count() == 0
    assert page.locator("details table:visible").count() == page.locator("details table").count()


@pytest.mark.parametrize("width", [320, 400, 768])
def test_page_does_not_scroll_sideways(open_report: Open, width: int) -> None:
    page = open_report(width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_script_everything_is_there(open_report: Open) -> None:
    page = open_report(java_script_enabled=False).page
    assert page.locator(".design:visible").count() == 4
    assert page.locator("#fabrics .e > title").count() == 64  # four drawings of 16 cables
    assert page.locator("button").count() == 0


def test_no_motion_for_those_who_want_none(open_report: Open) -> None:
    behavior = "getComputedStyle(document.documentElement).scrollBehavior"
    assert open_report(reduced_motion="reduce").page.evaluate(behavior) == "auto"
