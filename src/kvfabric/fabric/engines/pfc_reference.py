"""The conditions of a stationary state under PFC, written down plainly: the check of the solver.

For one priority and whole-port pauses. It solves nothing: it says how far rates and prices are from
a state in which every queue and every pause stays as it is.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

Path = Sequence[int]


def stationarity_gap(
    paths: Sequence[Path],
    rates: Sequence[float],
    prices: Mapping[int, float],
    capacity: Sequence[float],
    loop_price: Sequence[float],
) -> float:
    """Return by how much, relatively, the worst condition is missed; 0 is a stationary state.

    With C the capacity of a channel, u the price of its queue (delay over budget), y a rate:

    1. the flows of a NIC port have one rate, min(C / n, 1 / sum of (u ahead + loop));
    2. no channel carries more than C, no ingress port holds more than its budget;
    3. where a queue stands (u > 0), its channel carries C or the port at its far end is full.

    Args:
        paths: channels of each flow, of which the first is the NIC port.
        rates: of each flow, bytes per ns.
        prices: of the queue of every channel on a path, ns per byte.
        capacity: of every channel, bytes per ns.
        loop_price: of every channel: what the pause loop adds to the price ahead.

    Source: Little's law per flow and queue (bytes held = rate * delay); the sums over the flows of
    one ingress port are the budget that PFC (IEEE 802.1Qbb) grants it.
    """
    load: dict[int, float] = defaultdict(float)
    held: dict[int, float] = defaultdict(float)
    per_source: dict[int, list[int]] = defaultdict(list)
    for flow, path in enumerate(paths):
        per_source[path[0]].append(flow)
        for place, channel in enumerate(path):
            load[channel] += rates[flow]
            if place + 1 < len(path):
                held[channel] += rates[flow] * (prices[path[place + 1]] + loop_price[channel])
    gaps = [0.0]
    for source, flows in per_source.items():
        ahead = sum(prices[paths[f][1]] + loop_price[source] for f in flows if len(paths[f]) > 1)
        rate = min(capacity[source] / len(flows), 1 / ahead if ahead else float("inf"))
        gaps += [abs(rates[flow] / rate - 1) for flow in flows]
    for channel in load.keys() - per_source.keys():
        fullest = max(load[channel] / capacity[channel], held[channel])
        is_queued = prices[channel] * capacity[channel] > 1e-3
        gaps.append(abs(fullest - 1) if is_queued else fullest - 1)
    return max(gaps)
