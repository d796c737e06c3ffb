"""Where workers stand: which GPUs of which servers each of them has, and what it is called.

Workers are placed one after the other, each in the first server with room for it, so that a worker
that fits in a server stays inside it; a larger one takes whole servers and room for the rest. Sizes
that are powers of two fill servers exactly; others may not.
"""

from collections.abc import Iterable, Sequence
from typing import Final

SERVER_GPUS: Final = 8


def place_workers(num_gpus_each: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Return the fabric GPU indices of each worker, in rank order.

    >>> place_workers([4, 8, 4])
    ((0, 1, 2, 3), (8, 9, 10, 11, 12, 13, 14, 15), (4, 5, 6, 7))
    """
    servers = _Servers()
    placed: list[tuple[int, ...]] = []
    for num_gpus in num_gpus_each:
        gpus: list[int] = []
        for _ in range(num_gpus // SERVER_GPUS):
            gpus += servers.take_new(SERVER_GPUS)
        if num_gpus % SERVER_GPUS:
            gpus += servers.take(num_gpus % SERVER_GPUS)
        placed.append(tuple(gpus))
    return tuple(placed)


class _Servers:
    """Servers in order; those that have free GPUs, with their free GPUs."""

    def __init__(self) -> None:
        self._num_servers = 0
        self._free: dict[int, set[int]] = {}

    def take_new(self, num_gpus: int) -> list[int]:
        first = self._num_servers * SERVER_GPUS
        rest = set(range(first + num_gpus, first + SERVER_GPUS))
        if rest:
            self._free[self._num_servers] = rest
        self._num_servers += 1
        return list(range(first, first + num_gpus))

    def take(self, num_gpus: int) -> list[int]:
        """Take neighbours of the first server that has them, from a multiple of what divides."""
        align = num_gpus & -num_gpus
        for server, free in self._free.items():
            first_gpu, end = server * SERVER_GPUS, (server + 1) * SERVER_GPUS
            for first in range(first_gpu, end - num_gpus + 1, align):
                run = range(first, first + num_gpus)
                if free.issuperset(run):
                    free.difference_update(run)
                    if not free:
                        del self._free[server]
                    return list(run)
        return self.take_new(num_gpus)


def in_turn(num_prefill: int, num_decode: int, *, is_interleaved: bool) -> list[int]:
    """Return worker ids, prefill workers first, in the order in which they are placed.

    >>> in_turn(2, 2, is_interleaved=True)
    [2, 0, 3, 1]
    """
    num_workers = num_prefill + num_decode
    if not is_interleaved or not num_decode:
        return list(range(num_workers))
    slots = {slot * num_workers // num_decode for slot in range(num_decode)}
    prefill, decode = iter(range(num_prefill)), iter(range(num_prefill, num_workers))
    return [next(decode if slot in slots else prefill) for slot in range(num_workers)]


def fills_servers(worker_gpus: Sequence[tuple[int, ...]]) -> bool:
    """Return whether no server is left with GPUs that no worker has."""
    num_gpus = sum(map(len, worker_gpus))
    return max(max(gpus) for gpus in worker_gpus) + 1 == num_gpus and not num_gpus % SERVER_GPUS


def worker_names(num_prefill: int, num_decode: int) -> list[str]:
    """Return the name of each worker, by id.

    >>> worker_names(1, 1), worker_names(2, 0)
    (['prefill-0', 'decode-0'], ['aggregated-0', 'aggregated-1'])
    """
    first = "prefill" if num_decode else "aggregated"
    return [f"{first}-{i}" for i in range(num_prefill)] + [f"decode-{i}" for i in range(num_decode)]
