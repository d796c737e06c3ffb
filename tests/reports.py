"""Reports of small plans, and what tests need to look inside them."""

from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser

from plan_requests import GBIT, plain_workload, plan_request

from kvfabric.export.report.page import report_html
from kvfabric.fabric.engines.choice import PFC
from kvfabric.plan.compare import Comparison, compare
from kvfabric.plan.request import FabricChoice, NetworkRequest, PlanRequest
from kvfabric.plan.verdict import judge

EVIL = '<script>alert(1)</script> & "quotes" \' </style>'
SCENARIO = "name: test  # <b>default</b>\n"
COMMAND = "kvfabric plan scenario.yaml --html report.html"


def request_with_failures() -> PlanRequest:
    """Return a plan under priority flow control: a fabric whole, and one with a cable less."""
    request = plan_request(workload=plain_workload(20))
    network = NetworkRequest(
        nic_rate_bps=400 * GBIT,
        fabrics=(
            FabricChoice(kind="roft", radix=16),
            FabricChoice(kind="clos", radix=16, label=EVIL, failures=("port:GPU 3 port 0",)),
        ),
        load_balancing=("ecmp", "assigned"),
        engine=PFC,
    )
    return replace(request, name=EVIL, network=network)


@cache
def plain_comparison() -> Comparison:
    """Return the results of two fabrics with two policies each, and of the aggregated fleet."""
    return compare(plan_request(workload=plain_workload(20)))


@cache
def failed_comparison() -> Comparison:
    """Return the results of ``request_with_failures``."""
    return compare(request_with_failures())


def report_of(comparison: Comparison) -> str:
    """Return the page."""
    return report_html(comparison, judge(comparison), scenario=SCENARIO, command=COMMAND)


@dataclass(frozen=True)
class Element:
    """One element of a page: its tag, attributes, and the tags around it."""

    tag: str
    attributes: dict[str, str]
    path: tuple[str, ...]
    text: str

    def get(self, name: str) -> str:
        return self.attributes.get(name, "")


VOID = {"meta", "input", "br", "link"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str], list[str], int]] = []
        self.found: list[tuple[int, Element]] = []
        self.count = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.count += 1
        if tag in VOID:
            self._keep(tag, attributes, [], self.count)
        else:
            self.open.append((tag, attributes, [], self.count))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count += 1
        self._keep(tag, {name: value or "" for name, value in attrs}, [], self.count)

    def handle_data(self, data: str) -> None:
        for _, _, texts, _ in self.open:
            texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        opened, attributes, texts, place = self.open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        self._keep(tag, attributes, texts, place)

    def _keep(self, tag: str, attributes: dict[str, str], texts: list[str], place: int) -> None:
        path = tuple(found[0] for found in self.open)
        self.found.append((place, Element(tag, attributes, path, "".join(texts))))


def elements(page: str) -> list[Element]:
    """Return all elements in order; fails where tags are not nested properly."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open, "every element is closed"
    return [element for _, element in sorted(reader.found, key=lambda pair: pair[0])]
