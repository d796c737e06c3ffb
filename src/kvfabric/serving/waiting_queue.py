"""The requests of one worker that wait for blocks or a place, first come first served."""

from collections import deque

from kvfabric.serving.request import Request, RequestState


class WaitingQueue:
    """A queue that knows how many tokens its requests have to compute.

    ``requests`` is for looking at, first come first; change it by the methods only.
    """

    __slots__ = ("num_tokens", "requests")

    def __init__(self) -> None:
        """Start empty."""
        self.requests: deque[Request] = deque()
        self.num_tokens = 0

    def append(self, request: Request) -> None:
        """Let a request wait behind all others."""
        request.state = RequestState.WAITING
        self.requests.append(request)
        self.num_tokens += request.num_tokens

    def put_first(self, request: Request) -> None:
        """Let a request wait before all others."""
        request.state = RequestState.WAITING
        self.requests.appendleft(request)
        self.num_tokens += request.num_tokens

    def pop(self) -> Request:
        """Take out who is next."""
        request = self.requests.popleft()
        self.num_tokens -= request.num_tokens
        return request

    def remove(self, request: Request) -> None:
        """Take a request out of the middle."""
        self.requests.remove(request)
        self.num_tokens -= request.num_tokens

    def check_invariants(self) -> None:
        """Assert the count of tokens."""
        assert self.num_tokens == sum(request.num_tokens for request in self.requests)
        assert all(request.state is RequestState.WAITING for request in self.requests)
