"""What one worker knows of its requests: the containers they are in and the ways in and out.

The lowest of three layers of one state machine, each a subclass of the one below, so that looking
at the state costs the same in all of them: ``step_planning`` decides steps from it, ``scheduler``
takes commands and results. A driver uses the top, ``Scheduler``.

Rule here (vLLM V1, 0.19): the youngest running request is preempted, by recompute; it waits before
all others and later hits its own cached prefix.
"""

from collections import deque

from kvfabric.kvcache.manager import KVManager
from kvfabric.serving.commands import AddRequest, WorkerSignal
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.decode_batch import DecodeBatch
from kvfabric.serving.request import Goal, Request, RequestState
from kvfabric.serving.step_out import StepOut
from kvfabric.serving.waiting_queue import WaitingQueue


class SchedulerState:
    """Waiting, running and held requests of one worker, and the steps that are out.

    Invariants:
        I1. scheduled tokens never exceed the budget, running requests never ``max_num_seqs``.
        I2. a request that is not waiting and not gone has a block table; the others have none.
        I3. every known request is in exactly one state, and its container agrees with it.
    """

    __slots__ = (
        "_batch",
        "_cancelling",
        "_config",
        "_has_news",
        "_left",
        "_loaded",
        "_num_prompt_tokens",
        "_out",
        "_partial",
        "_requests",
        "_running",
        "_signal",
        "_waiting",
        "kv",
        "num_preemptions",
    )

    def __init__(self, config: SchedulerConfig) -> None:
        """Make an idle worker."""
        self._config = config
        self._signal = WorkerSignal()  # last reported
        self.kv = KVManager(
            config.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._batch = DecodeBatch(config.block_size)
        self._requests: dict[int, Request] = {}
        self._waiting = WaitingQueue()
        self._loaded: deque[Request] = deque()
        self._running: dict[int, Request] = {}  # oldest first
        self._partial: Request | None = None  # the one prompt that is computed in part
        self._out: deque[StepOut] = deque()  # planned and not completed, oldest first
        self._left: list[int] = []  # gone since the last plan, for the executor
        self._cancelling: dict[int, int] = {}  # steps to complete until the blocks are free
        self._has_news = False  # something changed since the last look at who may come in
        self._num_prompt_tokens = 0
        self.num_preemptions = 0

    # ------------------------------------------------------------------ what others may ask

    @property
    def is_drained(self) -> bool:
        """Return whether no request is known."""
        return not self._requests

    @property
    def num_running(self) -> int:
        """Return the requests that hold a place in the batch."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return the requests that wait for blocks or a place."""
        return len(self._waiting.requests)

    @property
    def may_only_reserve(self) -> bool:
        """Return whether nobody but who waits for blocks for received KV may be let in."""
        if self._loaded or self._cancelling:
            return False
        return all(request.needs_kv for request in self._waiting.requests)

    def _may_let_in(self) -> bool:
        """Return whether somebody might get in who could not at the last look."""
        if not self._has_news or len(self._running) >= self._config.max_num_seqs:
            return False
        return bool(self._loaded or self._waiting.requests)

    # ------------------------------------------------------------------ in

    def _add(self, command: AddRequest) -> None:
        request_id, num_prompt_tokens = command.request_id, command.num_prompt_tokens
        max_tokens, external = command.max_tokens, command.num_external_tokens
        assert request_id not in self._requests, "request ids are unique in a worker"
        assert 1 <= num_prompt_tokens < num_prompt_tokens + max_tokens <= self._config.max_model_len
        request = Request(request_id, num_prompt_tokens, max_tokens, command.goal, command.keys)
        if external:
            assert 0 < external < num_prompt_tokens, "something is left to compute"
            assert external % self.kv.block_size == 0, "KV cache comes in whole blocks"
            request.num_external_tokens = external
        self._requests[request_id] = request
        self._num_prompt_tokens += num_prompt_tokens
        self._has_news |= not self._waiting.requests
        self._waiting.append(request)

    def _start_running(self, request: Request, state: RequestState, now_ns: int) -> None:
        request.state = state
        self._running[request.request_id] = request
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = now_ns

    # ------------------------------------------------------------------ out

    def _stop_running(self, request: Request) -> None:
        """Take a request out of the batch or its prefill; the executor is told in the next plan."""
        del self._running[request.request_id]
        self._left.append(request.request_id)
        if request.in_batch:
            self._batch.leave(request)
        if self._partial is request:
            self._partial = None

    def _preempt_youngest(self) -> Request:
        """Take the youngest running request's blocks; it waits before all others."""
        request = self._running[next(reversed(self._running))]
        has_token_out = bool(self._out) and request.state is not RequestState.PREFILLING
        self._stop_running(request)
        known_tokens = request.num_computed - has_token_out
        if not request.num_received_tokens:  # else its front may still be on its way
            self.kv.remember(request.request_id, request.keys, 0, known_tokens)
        self.kv.release(request.request_id)
        request.num_computed = request.num_received_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        if request.goal is Goal.DECODE:
            request.goal = Goal.GENERATE  # what it received is gone; recompute it here
        self._waiting.put_first(request)
        return request

    def _stop_cancelled(self) -> None:
        """Keep cancelled requests out of what is planned from now on."""
        for request_id in self._cancelling:
            if request_id in self._running:
                request = self._running[request_id]
                self._stop_running(request)
                request.state = RequestState.LEAVING

    def _remove(self, request: Request) -> None:
        """Take a request out of whatever holds it and give its blocks back."""
        if request.state is RequestState.WAITING:
            self._waiting.remove(request)
        elif request.state is RequestState.LOADED:
            self._loaded.remove(request)
        elif request.request_id in self._running:
            self._stop_running(request)
        self._drop(request)

    def _drop(self, request: Request) -> None:
        """Forget a request that nothing but its block table holds, and give its blocks back."""
        request.state = RequestState.GONE
        self._has_news = True
        del self._requests[request.request_id]
        self._num_prompt_tokens -= request.num_prompt_tokens
        if request.request_id in self.kv.tables:
            self.kv.release(request.request_id)

    # ------------------------------------------------------------------ cached prefixes

    def _remember_known(self, request: Request, first_block: int, num_tokens: int) -> None:
        """Make the blocks findable that other requests can name; the rest only on preemption."""
        known_tokens = request.keys.num_known * self.kv.block_size
        self.kv.remember(
            request.request_id, request.keys, first_block, min(num_tokens, known_tokens)
        )

    # ------------------------------------------------------------------ checking

    def check_invariants(self) -> None:
        """Assert I1 to I3 and those of the parts."""
        self.kv.check_invariants()
        self._batch.check_invariants()
        self._waiting.check_invariants()
        assert len(self._running) <= self._config.max_num_seqs, "I1"
        tables = set(self.kv.tables)
        runs = {RequestState.PREFILLING, RequestState.DECODING, RequestState.FINISHING}
        for request in self._requests.values():
            is_waiting = request.state is RequestState.WAITING
            assert (request.request_id in tables) != is_waiting, "I2"
            assert (request.request_id in self._running) == (request.state in runs), "I3"
        assert tables <= self._requests.keys(), "I2"
