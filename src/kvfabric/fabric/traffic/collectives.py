"""Collectives among GPUs as sets of flows with dependencies.

What travels and what must have arrived before, not how long it takes: ``collective_run`` plays the
flows over a fabric. Ranks are GPU numbers; data is counted in bytes per rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from kvfabric.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CollectiveFlow:
    """One message of a collective.

    Attributes:
        src: GPU that sends.
        dst: GPU that receives.
        num_bytes: from 0.
        after: flows, by place in their list, that must have ended before; all stand before it.
    """

    src: int
    dst: int
    num_bytes: int
    after: tuple[int, ...] = ()


Flows = tuple[CollectiveFlow, ...]


def ring_send(ranks: Sequence[int], num_bytes: int) -> Flows:
    """Return one step of a ring: every rank sends to the next one, the last to the first."""
    _check_ranks(ranks)
    return tuple(
        CollectiveFlow(src, dst, num_bytes)
        for src, dst in zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    )


def ring_all_gather(ranks: Sequence[int], shard_bytes: Sequence[int]) -> Flows:
    """Return the flows by which all ranks get all shards around a ring, in N - 1 steps.

    A rank passes a shard on when it has it whole, one shard after the other. It sends all shards
    but that of the rank after it: ``(N - 1) / N`` of the data where they are equal.

    Args:
        ranks: in the order of the ring.
        shard_bytes: of each rank.
    """
    return _ring(ranks, shard_bytes, first_shard=0)


def ring_reduce_scatter(ranks: Sequence[int], shard_bytes: Sequence[int]) -> Flows:
    """Return the flows by which every rank gets the sum of its shard around a ring.

    A rank adds its own part to what came and passes the sum on; the shard of a rank begins at the
    rank after it, and ends where it belongs. Adding takes no time here.
    """
    return _ring(ranks, shard_bytes, first_shard=-1)


def _ring(ranks: Sequence[int], shard_bytes: Sequence[int], first_shard: int) -> Flows:
    _check_shards(ranks, shard_bytes)
    size = len(ranks)
    flows: list[CollectiveFlow] = []
    for step in range(size - 1):
        for place in range(size):
            after: tuple[int, ...] = ()
            if step:  # the shard has come, and this rank's last message is out
                before = len(flows) - place - size
                after = tuple(sorted((before + (place - 1) % size, before + place)))
            shard = shard_bytes[(place + first_shard - step) % size]
            flows.append(CollectiveFlow(ranks[place], ranks[(place + 1) % size], shard, after))
    return tuple(flows)


def direct_all_gather(ranks: Sequence[int], shard_bytes: Sequence[int]) -> Flows:
    """Return the flows by which every rank sends its shard to all others at once."""
    _check_shards(ranks, shard_bytes)
    size_of = dict(zip(ranks, shard_bytes, strict=True))
    return tuple(CollectiveFlow(src, dst, size_of[src]) for src, dst in permutations(ranks, 2))


def direct_reduce_scatter(ranks: Sequence[int], shard_bytes: Sequence[int]) -> Flows:
    """Return the flows by which every rank gets its shard of all others at once and adds them."""
    _check_shards(ranks, shard_bytes)
    size_of = dict(zip(ranks, shard_bytes, strict=True))
    return tuple(CollectiveFlow(src, dst, size_of[dst]) for src, dst in permutations(ranks, 2))


def all_to_all(ranks: Sequence[int], pair_bytes: int) -> Flows:
    """Return the flows by which every rank sends each other one a message of its own, at once."""
    _check_ranks(ranks)
    return tuple(CollectiveFlow(src, dst, pair_bytes) for src, dst in permutations(ranks, 2))


def one_after_the_other(*collectives: Flows) -> Flows:
    """Return collectives as one, where a rank begins the next when it is done with the last.

    A rank is done when all that it sends and receives in a collective has ended.
    """
    joined: list[CollectiveFlow] = []
    earlier: dict[int, tuple[int, ...]] = {}
    for flows in collectives:
        first = len(joined)
        touching: dict[int, list[int]] = {}
        for number, flow in enumerate(flows, start=first):
            after = tuple(first + place for place in flow.after)
            if not after:
                after = tuple(sorted({*earlier.get(flow.src, ()), *earlier.get(flow.dst, ())}))
            joined.append(replace(flow, after=after))
            for rank in (flow.src, flow.dst):
                touching.setdefault(rank, []).append(number)
        earlier |= {rank: tuple(numbers) for rank, numbers in touching.items()}
    return tuple(joined)


def _check_ranks(ranks: Sequence[int]) -> None:
    if len(set(ranks)) != len(ranks) or not ranks:
        raise ConfigError(f"ranks {list(ranks)}", hint="Write one or more GPUs, each once")


def _check_shards(ranks: Sequence[int], shard_bytes: Sequence[int]) -> None:
    _check_ranks(ranks)
    if len(shard_bytes) != len(ranks):
        raise ConfigError(
            f"{len(shard_bytes)} shards for {len(ranks)} ranks", hint="Write one shard per rank"
        )
