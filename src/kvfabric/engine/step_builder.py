"""Turns a scheduler's plan, which carries totals and changes, into a step that names every request.

The decode batch is not in a plan: it is who joined, and whose prompt ended, and has not left.
"""

from collections.abc import Mapping, Sequence

from kvfabric.engine.executor_port import EngineStep, NewRequest, ScheduledTokens
from kvfabric.protocol.step import StepPlan


class StepBuilder:
    """What one worker's executor knows, and who decodes there.

    Invariants:
        I1. the decode batch has the size and the summed context of every plan.
    """

    __slots__ = ("_batch", "_decodes", "_gone", "_new", "_num_sent")

    def __init__(self) -> None:
        """Start with an executor that knows nothing."""
        self._batch: dict[int, int] = {}  # decoding requests to the tokens in their cache
        self._decodes: dict[int, bool] = {}  # known requests; whether they decode here
        self._new: dict[int, NewRequest] = {}  # those the executor has not seen
        self._num_sent: dict[int, int] = {}  # blocks of their tables that it has seen
        self._gone: list[int] = []

    def add(self, request: NewRequest, *, decodes: bool) -> None:
        """Take a request in; ``decodes`` is False for a prompt that is only computed here."""
        request_id = request.request_id
        assert request_id not in self._decodes, "request ids are unique in a worker"
        self._decodes[request_id] = decodes
        self._new[request_id] = request
        self._num_sent[request_id] = 0

    def drop(self, request_id: int) -> None:
        """Forget a request, with the next step the executor too; unknown ids are ignored."""
        if self._decodes.pop(request_id, None) is None:
            return
        self._batch.pop(request_id, None)
        del self._num_sent[request_id]
        if self._new.pop(request_id, None) is None:
            self._gone.append(request_id)

    def knows(self, request_id: int) -> bool:
        """Return whether a request was added and not dropped."""
        return request_id in self._decodes

    def build(self, plan: StepPlan, tables: Mapping[int, Sequence[int]]) -> EngineStep:
        """Return the step of a plan, just made; ``tables`` are the block tables by request."""
        batch = self._batch
        for request_id in plan.left:
            batch.pop(request_id, None)
            if request_id in self._num_sent:
                self._num_sent[request_id] = 0  # preempted: its table is gone
        for join in plan.joined:
            batch[join.request_id] = join.num_context_tokens
        assert len(batch) == plan.num_decodes, "I1"
        assert sum(batch.values()) == plan.context_tokens, "I1"
        scheduled: list[ScheduledTokens] = []
        for request_id, context in batch.items():
            scheduled.append(self._share(request_id, context, 1, tables, samples=True))
            batch[request_id] = context + 1
        for chunk in plan.prefill:
            request_id, history = chunk.request_id, chunk.num_history_tokens
            samples = chunk.is_last and self._decodes[request_id]
            scheduled.append(
                self._share(request_id, history, chunk.num_tokens, tables, samples=samples)
            )
            if samples:
                batch[request_id] = history + chunk.num_tokens
        new = [self._new.pop(share[0]) for share in scheduled if share[0] in self._new]
        gone, self._gone = tuple(self._gone), []
        return EngineStep(tuple(new), tuple(scheduled), gone)

    def _share(
        self,
        request_id: int,
        first: int,
        num_tokens: int,
        tables: Mapping[int, Sequence[int]],
        *,
        samples: bool,
    ) -> ScheduledTokens:
        table, num_sent = tables[request_id], self._num_sent[request_id]
        self._num_sent[request_id] = len(table)
        return ScheduledTokens(
            request_id, first, num_tokens, samples, num_sent, tuple(table[num_sent:])
        )
