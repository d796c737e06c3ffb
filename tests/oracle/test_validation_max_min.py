"""The carried max-min instance, solved once more in rational arithmetic."""

from fractions import Fraction

from kvfabric.plan.validation.max_min import CLOSED_FORMS, LINK_BPS, Flow
from kvfabric.plan.validation.max_min_case import CAPACITY_BPS, EXACT_NS, FLOWS

NS_BITS = 8 * 10**9


def rates(
    bytes_per_ns: list[Fraction], flows: tuple[Flow, ...], active: set[int]
) -> dict[int, Fraction]:
    """Return max-min fair rates by progressive filling: the tightest link first."""
    left = dict(enumerate(bytes_per_ns))
    flows_on = {link: {f for f in active if link in flows[f][0]} for link in left}
    found: dict[int, Fraction] = {}
    while waiting := [link for link in left if flows_on[link]]:
        tightest = min(waiting, key=lambda link: left[link] / len(flows_on[link]))
        share = left[tightest] / len(flows_on[tightest])
        for flow in list(flows_on[tightest]):
            found[flow] = share
            for link in flows[flow][0]:
                left[link] -= share
                flows_on[link].discard(flow)
    return found


def exact_ends_ns(capacity_bps: list[int], flows: tuple[Flow, ...]) -> list[Fraction]:
    """Return when each flow ends, event by event."""
    bytes_per_ns = [Fraction(bps, NS_BITS) for bps in capacity_bps]
    left = {flow: Fraction(num_bytes) for flow, (_, _, num_bytes) in enumerate(flows)}
    to_start = sorted(left, key=lambda flow: flows[flow][1])
    now_ns, active, ends = Fraction(0), set[int](), dict[int, Fraction]()
    while len(ends) < len(flows):
        rate = rates(bytes_per_ns, flows, active)
        events_ns = [now_ns + left[flow] / rate[flow] for flow in active]
        events_ns += [Fraction(flows[flow][1]) for flow in to_start[:1]]
        next_ns = min(events_ns)
        for flow in active:
            left[flow] -= rate[flow] * (next_ns - now_ns)
        now_ns = next_ns
        ended = {flow for flow in active if left[flow] == 0}
        ends |= dict.fromkeys(ended, now_ns)
        active -= ended
        while to_start and flows[to_start[0]][1] == now_ns:
            active.add(to_start.pop(0))
    return [ends[flow] for flow in range(len(flows))]


def test_carried_ends_are_exact() -> None:
    carried = [Fraction(numerator, denominator) for numerator, denominator in EXACT_NS]
    assert exact_ends_ns(list(CAPACITY_BPS), FLOWS) == carried


def test_closed_forms_are_exact() -> None:
    for name, num_links, flows, answers in CLOSED_FORMS:
        assert exact_ends_ns([LINK_BPS] * num_links, flows) == list(answers), name
