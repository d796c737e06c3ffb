"""The choice of what costs least, where equals take turns."""

NEVER = 1 << 62
"""The cost of what must not be chosen, such as a lost worker."""


def next_least(costs: list[int], last: int) -> int:
    """Return the index of the least cost, the first such after ``last`` in turn.

    >>> next_least([5, 3, 3], 0), next_least([5, 3, 3], 1), next_least([5, 3, 3], 2)
    (1, 2, 1)
    """
    least = min(costs)
    assert least < NEVER, "no live worker to choose"
    first = costs.index(least)
    if first > last or costs.count(least) == 1:
        return first
    for index in range(last + 1, len(costs)):
        if costs[index] == least:
            return index
    return first
