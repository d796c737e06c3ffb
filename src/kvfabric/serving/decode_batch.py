"""The running decode batch as a handful of integers, so that an iteration touches no request."""

import heapq

from kvfabric.serving.request import Request, RequestState


class DecodeBatch:
    """Requests that produce one token per iteration.

    ``tick`` counts iterations. A request needs a new block in the iteration where the tokens in its
    cache are a multiple of the block size; since every request gains one token per iteration, that
    is a fixed phase of the tick, and the requests of one phase share a bucket.

    Invariants:
        I1. ``size`` is the number of requests in all buckets.
        I2. ``context_tokens`` is the sum of ``context(request)`` over them.
    """

    __slots__ = ("_buckets", "_limits", "block_size", "context_tokens", "size", "tick")

    def __init__(self, block_size: int) -> None:
        """Start empty at tick 0."""
        self.block_size = block_size
        self.tick = 0
        self.size = 0
        self.context_tokens = 0
        self._buckets: list[dict[int, Request]] = [{} for _ in range(block_size)]
        self._limits: list[tuple[int, int, Request]] = []

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
        self.size += 1
        self.context_tokens += context_tokens

    def leave(self, request: Request) -> None:
        """Take a request out and store what it computed and produced."""
        context = self.context(request)
        del self._bucket(request)[request.request_id]
        request.num_outputs += self.tick - request.join_tick
        request.num_computed = context
        request.in_batch = False
        self.size -= 1
        self.context_tokens -= context

    def _bucket(self, request: Request) -> dict[int, Request]:
        return self._buckets[(request.join_tick - request.join_context) % self.block_size]

    def growing(self, iterations_ahead: int = 0) -> list[Request]:
        """Return the requests that need a block in an iteration, in order of joining."""
        return list(self._buckets[(self.tick + iterations_ahead) % self.block_size].values())

    def num_growing(self, iterations_ahead: int = 0) -> int:
        """Return how many blocks an iteration needs before it runs."""
        return len(self._buckets[(self.tick + iterations_ahead) % self.block_size])

    def iterations_within(self, num_free: int) -> int:
        """Return how many iterations can run after the coming one on ``num_free`` blocks."""
        whole, left = divmod(num_free, self.size)
        ahead = whole * self.block_size
        while True:
            need = self.num_growing(ahead + 1)
            if need > left:
                return ahead
            left -= need
            ahead += 1

    def iterations_to_limit(self) -> int:
        """Return the iterations until the first request reaches its token limit."""
        limits = self._limits
        while True:
            limit_tick, _, request = limits[0]
            if self._is_current(limit_tick, request):
                return limit_tick - self.tick
            heapq.heappop(limits)

    def _is_current(self, limit_tick: int, request: Request) -> bool:
        """Return whether a heap entry still speaks of the request's present stay."""
        if not request.in_batch:
            return False
        return limit_tick == request.join_tick + request.max_tokens - request.num_outputs

    def advance(self, num_iterations: int) -> None:
        """Count iterations that have run."""
        self.context_tokens += self.size * num_iterations
        self.tick += num_iterations

    def pop_at_limit(self) -> list[Request]:
        """Return the requests that have reached their token limit, still in the batch."""
        reached: list[Request] = []
        while self._limits and self._limits[0][0] <= self.tick:
            limit_tick, _, request = heapq.heappop(self._limits)
            if self._is_current(limit_tick, request):
                reached.append(request)
        return reached

    def check_invariants(self) -> None:
        """Assert I1 and I2."""
        requests = [request for bucket in self._buckets for request in bucket.values()]
        assert len(requests) == self.size, "I1"
        assert sum(self.context(request) for request in requests) == self.context_tokens, "I2"
