"""A running cluster behind the server: requests to the control loop, tokens to the event loop."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvfabric.engine.block_hashes import block_hashes
from kvfabric.engine.control_loop import ControlLoop
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.engine.server.backend import BackendStats, Receiver, ServedModel, TextCodec
from kvfabric.protocol.record import Outcome, RequestRecord


class _Token(NamedTuple):
    request_id: int
    token_id: int
    at_ns: int


class _End(NamedTuple):
    record: RequestRecord
    finish: FinishReason | None


class OutputRelay:
    """Carries output from the control loop's thread to the event loop, waking it once per burst."""

    def __init__(self) -> None:
        """Carry nothing yet."""
        self._items: deque[_Token | _End] = deque()
        self._is_woken = False
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._receivers: dict[int, Receiver] = {}
        self._num_prompt_tokens: dict[int, int] = {}
        self._has_failed = False

    def register(self, request_id: int, num_prompt_tokens: int, receiver: Receiver) -> None:
        """Let a receiver have the output of a request; called in the event loop."""
        self._event_loop = asyncio.get_running_loop()
        self._receivers[request_id] = receiver
        self._num_prompt_tokens[request_id] = num_prompt_tokens
        if self._has_failed:
            self._event_loop.call_soon(self._fail_all)

    def fail(self) -> None:
        """Fail every request, open or to come; called by the control loop when an error ends it."""
        self._has_failed = True  # before the event loop is read: ``register`` does the reverse
        if self._event_loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._event_loop.call_soon_threadsafe(self._fail_all)

    def _fail_all(self) -> None:
        self._deliver()
        for request_id in list(self._receivers):
            record = RequestRecord(
                request_id=request_id,
                outcome=Outcome.FAILED,
                arrival_ns=0,
                num_prompt_tokens=self._num_prompt_tokens[request_id],
                num_output_tokens=0,
            )
            self._end(record, None)

    def _end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        del self._num_prompt_tokens[record.request_id]
        self._receivers.pop(record.request_id).on_end(record, finish)

    def on_token(self, request_id: int, token_id: int) -> None:
        """Take a token; called by the control loop."""
        self._put(_Token(request_id, token_id, time.monotonic_ns()))

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        """Take an end; called by the control loop."""
        self._put(_End(record, finish))

    def _put(self, item: _Token | _End) -> None:
        self._items.append(item)
        if not self._is_woken:
            self._is_woken = True
            assert self._event_loop is not None, "output of a request that nobody registered"
            with contextlib.suppress(RuntimeError):  # the server has ended; nobody listens
                self._event_loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # before the items are taken: later ones wake again
        while self._items:
            match self._items.popleft():
                case _Token(request_id, token_id, at_ns):
                    self._receivers[request_id].on_token(token_id, at_ns)
                case _End(record, finish):
                    self._end(record, finish)


class ClusterBackend:
    """A ``Backend`` that runs requests on a cluster."""

    def __init__(
        self,
        loop: ControlLoop,
        relay: OutputRelay,
        model: ServedModel,
        codec: TextCodec,
        *,
        block_size: int,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Serve what runs.

        Args:
            loop: of the cluster, whose sink is ``relay``.
            relay: brings its output.
            model: what is served.
            codec: its tokenizer.
            block_size: tokens per KV block.
            is_alive: whether the loop still runs.
        """
        self._loop, self._relay = loop, relay
        self._model, self._codec = model, codec
        self._block_size, self._is_alive = block_size, is_alive
        self._hash_key = secrets.token_bytes(32)  # so that clients cannot search for collisions
        self._request_ids = itertools.count()

    @property
    def model(self) -> ServedModel:
        """Return what is served."""
        return self._model

    @property
    def codec(self) -> TextCodec:
        """Return the tokenizer."""
        return self._codec

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling, receiver: Receiver) -> int:
        """Start a request; return its id."""
        request_id = next(self._request_ids)
        hashes = block_hashes(prompt_ids, self._block_size, key=self._hash_key)
        self._relay.register(request_id, len(prompt_ids), receiver)
        self._loop.submit(
            GenerateRequest(
                request_id, tuple(prompt_ids), sampling, hashes, hash_key=self._hash_key
            )
        )
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a request and free what it holds."""
        self._loop.cancel(request_id)

    def stats(self) -> BackendStats:
        """Return the state now, read beside the loop: numbers may be an instant apart."""
        driver = self._loop.driver
        if not self._is_alive():
            return BackendStats(0, 0, 0.0, 0)
        alive = [worker for worker in driver.workers if not worker.is_lost]
        num_waiting = sum(worker.scheduler.num_waiting for worker in alive)
        num_used = sum(worker.scheduler.kv.pool.num_used for worker in alive)
        num_blocks = sum(worker.scheduler.kv.pool.num_usable for worker in alive)
        return BackendStats(
            num_running=max(0, driver.num_in_flight - num_waiting),
            num_waiting=num_waiting,
            kv_cache_usage=num_used / num_blocks if num_blocks else 0.0,
            num_workers=len(alive),
        )
