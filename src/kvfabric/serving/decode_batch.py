"""The running decode batch as a handful of integers, so that an iteration touches no request.

The batch stands where the scheduler has planned to, which may be ahead of what has run.
"""

import heapq
from itertools import chain

from kvfabric.serving.request import Request, RequestState

NO_LIMIT = 1 << 62
MANY_ROUNDS = 64
"""With blocks for more rounds than these, runs end by something else; so they are not counted."""


class DecodeBatch:
    """Requests that produce one token per iteration.

    ``tick`` counts the iterations planned. A request needs a new block in the iteration where the
    tokens in its cache are a multiple of the block size; since every request gains one token per
    iteration, that is a fixed phase of the tick, and the requests of one phase share a bucket.

    Attributes:
        next_limit_tick: when the first request reaches its token limit; ``NO_LIMIT`` when empty.

    Invariants:
        I1. ``size`` is the number of requests in all buckets.
        I2. ``context_tokens`` is the sum of ``context(request)`` over them.
        I3. the first entry of the heap of limits speaks of a request's present stay.
    """

    __slots__ = (
        "_buckets",
        "_limits",
        "block_size",
        "context_tokens",
        "next_limit_tick",
        "size",
        "tick",
        "version",
    )

    def __init__(self, block_size: int) -> None:
        """Start empty at tick 0."""
        self.block_size = block_size
        self.tick = 0
        self.version = 0  # counts joins and leaves
        self.size = 0
        self.context_tokens = 0
        buckets: list[dict[int, Request]] = [{} for _ in range(block_size)]
        self._buckets = buckets + buckets  # each stands there twice, so that no window wraps round
        self._limits: list[tuple[int, int, Request]] = []  # heap of limit ticks, some outdated
        self.next_limit_tick = NO_LIMIT

    def context(self, request: Request) -> int:
        """Return the tokens in the cache of a request of the batch."""
        return request.join_context + self.tick - request.join_tick

    def join(self, request: Request, context_tokens: int) -> None:
        """Add a request from the coming iteration on."""
        assert not request.in_batch
        request.state = RequestState.DECODING
        request.in_batch = True
        request.join_tick, request.join_context = self.tick, context_tokens
        self._bucket(request)[request.request_id] = request
        limit_tick = self.tick + request.max_tokens - request.num_outputs
        heapq.heappush(self._limits, (limit_tick, request.request_id, request))
        self.next_limit_tick = self._limits[0][0]
        self.size += 1
        self.version += 1
        self.context_tokens += context_tokens

    def leave(self, request: Request) -> None:
        """Take a request out and store what it computed and produced."""
        context = self.context(request)
        del self._bucket(request)[request.request_id]
        request.num_outputs += self.tick - request.join_tick
        request.num_computed = context
        request.in_batch = False
        self.size -= 1
        self.version += 1
        self.context_tokens -= context
        if self._limits and self._limits[0][2] is request:
            self._drop_outdated()

    def _bucket(self, request: Request) -> dict[int, Request]:
        return self._buckets[(request.join_tick - request.join_context) % self.block_size]

    def growing(self, first: int = 0, end: int = 1) -> list[int]:
        """Return who needs a block in the iterations ``[first, end)`` from now, in that order."""
        buckets, size = self._buckets, self.block_size
        start = (self.tick + first) % size
        if end - first == 1:
            return list(buckets[start])
        rounds, rest = divmod(end - first, size)
        ids = list(chain.from_iterable(buckets[start : start + rest]))
        if rounds:
            return list(chain.from_iterable(buckets[start : start + size])) * rounds + ids
        return ids

    @property
    def num_growing(self) -> int:
        """Return how many blocks the coming iteration needs before it runs."""
        return len(self._buckets[self.tick % self.block_size])

    def iterations_within(self, num_free: int) -> int:
        """Return how many more iterations can run on ``num_free`` blocks, or many that can."""
        buckets, size = self._buckets, self.block_size
        whole, left = divmod(num_free, self.size)
        ahead = whole * size
        if whole > MANY_ROUNDS:
            return ahead
        tick = self.tick
        while True:
            left -= len(buckets[(tick + ahead) % size])
            if left < 0:
                return ahead
            ahead += 1

    def iterations_to_limit(self) -> int:
        """Return the iterations until the first request reaches its token limit."""
        return self.next_limit_tick - self.tick

    def _drop_outdated(self) -> None:
        """Take entries off the heap of limits until I3 holds."""
        limits = self._limits
        while limits and not self._is_current(limits[0][0], limits[0][2]):
            heapq.heappop(limits)
        self.next_limit_tick = limits[0][0] if limits else NO_LIMIT

    def _is_current(self, limit_tick: int, request: Request) -> bool:
        """Return whether a heap entry still speaks of the request's present stay."""
        if not request.in_batch:
            return False
        return limit_tick == request.join_tick + request.max_tokens - request.num_outputs

    def advance(self, num_iterations: int) -> None:
        """Plan iterations."""
        self.context_tokens += self.size * num_iterations
        self.tick += num_iterations

    def pop_at_limit(self) -> list[Request]:
        """Return the requests that have reached their token limit, still in the batch."""
        reached: list[Request] = []
        while self._limits and self._limits[0][0] <= self.tick:
            limit_tick, _, request = heapq.heappop(self._limits)
            is_twice = bool(reached) and reached[-1] is request  # left and came back in one tick
            if not is_twice and self._is_current(limit_tick, request):
                reached.append(request)
        self._drop_outdated()
        return reached

    def check_invariants(self) -> None:
        """Assert I1 to I3."""
        buckets = self._buckets[: self.block_size]
        requests = [request for bucket in buckets for request in bucket.values()]
        assert len(requests) == self.size, "I1"
        assert sum(self.context(request) for request in requests) == self.context_tokens, "I2"
        limits = self._limits
        assert not limits or self._is_current(limits[0][0], limits[0][2]), "I3"
        assert self.next_limit_tick == (limits[0][0] if limits else NO_LIMIT), "I3"
