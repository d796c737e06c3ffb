"""Which decode worker takes the KV cache of a prompt: the receiver of its hand-off."""

from collections.abc import Callable, Sequence
from enum import Enum

from kvfabric.errors import ConfigError
from kvfabric.serving.least_cost import NEVER, next_least

Draw = Callable[[int], int]
"""Returns a whole number from 0 to below its argument, such as ``random.Random(7).randrange``."""


class DecodePolicy(Enum):
    """How the receiver of a hand-off is chosen."""

    LEAST_LOADED = "least_loaded"  # the fewest prompt tokens
    ROUND_ROBIN = "round_robin"  # one after the other
    RANDOM = "random"  # any, without looking; several hand-offs meet at one receiver
    TOPOLOGY_AWARE = "topology_aware"  # see DecodeChoice


class DecodeChoice:
    """Chooses among the decode workers that are alive.

    ``topology_aware``: of the workers that hold at most a prompt like this one more than the mean,
    the one with the fewest hand-offs under way to it (its NICs are shared the least; one at no
    distance needs none, so that none count), then the nearest to the prefill worker, then the one
    with the fewest prompt tokens. So no worker is filled for being near, and an upper tier is
    crossed only where that avoids a receiver that is full or busy receiving. Where the prefill
    worker is not chosen yet (decode blocks are reserved first), all are equally near. Hand-offs
    under way are the control's own knowledge; prompt tokens are as old as the router's reports.
    Ties go in turn.
    """

    __slots__ = ("_distances", "_draw", "_last", "_policy")

    def __init__(
        self,
        policy: DecodePolicy = DecodePolicy.LEAST_LOADED,
        *,
        draw: Draw | None = None,
        distances: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make a choice that has chosen nothing yet.

        Args:
            policy: how to choose.
            draw: the source of chance; ``random`` needs it.
            distances: by prefill worker and decode worker, both from 0; lower is nearer.
                ``topology_aware`` needs them.

        Raises:
            ConfigError: what the policy needs is missing.
        """
        for needed, what, given in (
            (DecodePolicy.RANDOM, "a source of chance", draw is not None),
            (DecodePolicy.TOPOLOGY_AWARE, "distances between workers", len(distances) > 0),
        ):
            if policy is needed and not given:
                raise ConfigError(
                    f"receivers chosen {policy.value!r} without {what}",
                    hint="Give it, or choose another policy",
                )
        self._policy = policy
        self._draw = draw
        self._distances = distances
        self._last = -1  # chosen last; the turn begins after it

    def choose(
        self,
        num_prompt_tokens: int,
        loads: list[int],
        source: int,
        num_to: Sequence[int],
        first_worker: int,
    ) -> int:
        """Return the number of a decode worker, from 0.

        Args:
            num_prompt_tokens: of the prompt that is handed over.
            loads: prompt tokens of each decode worker, ``NEVER`` of a lost one.
            source: the prefill worker that sends; below 0: not chosen yet.
            num_to: hand-offs under way to every worker, by worker id.
            first_worker: the id of the first decode worker.
        """
        match self._policy:
            case DecodePolicy.LEAST_LOADED:
                chosen = next_least(loads, self._last)
            case DecodePolicy.ROUND_ROBIN:
                chosen = self._next_in_turn(_alive(loads))
            case DecodePolicy.RANDOM:
                assert self._draw is not None
                alive = _alive(loads)
                chosen = alive[self._draw(len(alive))]
            case DecodePolicy.TOPOLOGY_AWARE:
                fit = _fit(loads, num_prompt_tokens)
                distances = self._distances[source] if source >= 0 else [1] * len(loads)
                chosen = self._next_in_turn(_best(fit, loads, distances, num_to[first_worker:]))
        self._last = chosen
        return chosen

    def _next_in_turn(self, workers: list[int]) -> int:
        for worker in workers:
            if worker > self._last:
                return worker
        return workers[0]


def _alive(loads: list[int]) -> list[int]:
    alive = [worker for worker, load in enumerate(loads) if load < NEVER]
    assert alive, "no live worker to choose"
    return alive


def _fit(loads: list[int], num_prompt_tokens: int) -> list[int]:
    """Return the workers with at most so many tokens more than the mean of those alive."""
    alive = _alive(loads)
    most = sum([loads[worker] for worker in alive]) + num_prompt_tokens * len(alive)
    return [worker for worker in alive if loads[worker] * len(alive) <= most]


def _best(
    workers: list[int], loads: list[int], distances: Sequence[int], num_to: Sequence[int]
) -> list[int]:
    """Return those of the workers that nothing but turns can tell apart, ascending."""
    least = (NEVER, NEVER, NEVER)
    best: list[int] = []
    for worker in workers:
        distance = distances[worker]
        cost = (num_to[worker] if distance else 0, distance, loads[worker])
        if cost < least:
            least = cost
            best = []
        if cost == least:
            best.append(worker)
    return best
