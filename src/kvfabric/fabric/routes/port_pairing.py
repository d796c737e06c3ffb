"""Which ports of one NIC talk to which ports of another, judged by how far apart they are.

``PAIRINGS`` of a NIC are the ways to pair that are tried; port i of the source sends to port
``pairing[i]`` of the destination. ``routing_kernel`` judges them the same way, compiled.
"""

from collections.abc import Sequence
from itertools import permutations

from kvfabric.fabric.measured.measures import UNREACHABLE

MOST_PORTS_IN_ANY_ORDER = 4
PORT_PENALTY = 1 << 40
LINK_PENALTY = 1 << 20
MOST_SQUARES = 1 << 19

Pairing = tuple[int, ...]


def pairings_of(num_ports: int, *, hosts_forward: bool) -> tuple[Pairing, ...]:
    """Return the pairings to try, in the order that settles ties.

    All permutations up to four ports, and rotations beyond. Between switches that are joined by
    cables those that move every port come first, so that ZCube pairs opposite groups.
    """
    ports = range(num_ports)
    if num_ports > MOST_PORTS_IN_ANY_ORDER:
        return tuple(tuple((p + turn) % num_ports for p in ports) for turn in (*ports[1:], 0))
    found = list(permutations(ports))
    if not hosts_forward:
        found.sort(key=lambda pairing: sum(p == q for p, q in enumerate(pairing)))
    return tuple(found)


def pairing_score(distances: Sequence[int], *, hosts_forward: bool) -> int:
    """Return how bad a pairing is, from the distances between the switches of its pairs.

    The pairing that leaves fewest ports without a way is best, then the one that passes fewest
    links in all. On a tie lengths should be even, so that no stripe lags; where hosts forward they
    should be uneven instead: every port pair that is not among the shortest must leave through a
    GPU of its own, and even ones would pass the source or the destination on the way.
    """
    reached = [distance for distance in distances if distance != UNREACHABLE]
    squares = sum(distance * distance for distance in reached)
    return (
        (len(distances) - len(reached)) * PORT_PENALTY
        + sum(reached) * LINK_PENALTY
        + (MOST_SQUARES - squares if hosts_forward else squares)
    )
