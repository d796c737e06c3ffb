"""The cluster's control: routes requests, runs hand-offs, counts how every request ended.

A state machine over events of workers and network. It answers with actions for the driver, which
carries them out without deciding anything; ``actions`` says what is asked of it. Worker ids:
aggregated or prefill workers first, then decode workers.

It comes in three layers, each with its rules: ``request_routing`` (which worker gets a request, how
it is taken away), ``kv_movement`` (hand-offs, fetches, deadlines), and this one: what workers say,
and workers that come and go.
"""

from kvfabric.protocol.record import Outcome
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    IncomingRequest,
    SendCommand,
    StartRead,
    StartTransfer,
)
from kvfabric.serving.commands import (
    Cancelled,
    Finished,
    FirstToken,
    Prefilled,
    PrefillStarted,
    WorkerEvent,
)
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.handoff import Handoff
from kvfabric.serving.kv_movement import KvMovement
from kvfabric.serving.timeline import NO_WORKER, Timeline

__all__ = [
    "Action",
    "CancelTransfer",
    "Coordinator",
    "CoordinatorConfig",
    "EndRequest",
    "IncomingRequest",
    "SendCommand",
    "StartRead",
    "StartTransfer",
]


class Coordinator(KvMovement):
    """Follows every request from arrival to its record.

    Its counts and invariants stand in ``RequestRouting``.
    """

    __slots__ = ()

    # ------------------------------------------------------------------ events of workers

    def on_worker_event(self, worker: int, event: WorkerEvent, now_ns: int) -> list[Action]:
        """Follow what a worker says became of a request; stale news of ended ones is ignored."""
        timeline = self._live.get(event.request_id)
        if timeline is None:
            return []
        if timeline.is_leaving:
            has_left = worker == timeline.worker and isinstance(event, Cancelled)
            return self._start_anew(timeline, now_ns) if has_left else []
        if self._fetches is not None and self._fetches.is_leaving(event.request_id, worker):
            return self._fetches.let_go(timeline, event)
        match event:
            case Prefilled():
                return self._prefilled(timeline, worker, event, now_ns)
            case FirstToken():
                if timeline.first_token_ns is None:
                    timeline.first_token_ns = now_ns
            case Finished(_, num_outputs, num_preemptions):
                timeline.finished_ns = now_ns
                timeline.num_output_tokens = num_outputs
                timeline.num_preemptions += num_preemptions
                self._keep_generated(timeline, worker, num_outputs, now_ns)
                return [self._end(timeline, Outcome.FINISHED)]
            case PrefillStarted(_, num_cached_tokens):
                return self._prefill_started(timeline, worker, num_cached_tokens, now_ns)
            case Cancelled():
                pass
        return []

    def _keep_generated(
        self, timeline: Timeline, worker: int, num_outputs: int, now_ns: int
    ) -> None:
        """Note what of a finished request others can use; its last token has no KV cache."""
        if self._fetches is not None:
            num_prompt = timeline.num_prompt_tokens
            num_tokens = num_prompt + num_outputs - 1
            self._fetches.pool.generated(worker, timeline.keys, num_prompt, num_tokens, now_ns)

    # ------------------------------------------------------------------ workers that come and go

    def on_worker_lost(self, worker: int, now_ns: int) -> list[Action]:
        """Start anew, or fail, every request that a dead worker has even a part of.

        Its output is lost. It starts from its prompt as soon as the other worker of its hand-off,
        if there is one, has let go of it.
        """
        self._router.lose(worker)
        orphans = set[int]() if self._fetches is None else self._fetches.lose(worker, now_ns)
        actions: list[Action] = []
        for request_id in sorted(self._live):
            timeline = self._live[request_id]
            handoff = self._book.by_request.get(request_id)
            if handoff is not None and worker in {handoff.source, handoff.destination}:
                actions += self._restart(timeline, handoff, worker, now_ns)
            elif timeline.worker == worker and timeline.is_leaving:
                actions += self._start_anew(timeline, now_ns)
            elif timeline.worker == worker:
                actions += self._restart(timeline, None, worker, now_ns)
            elif request_id in orphans:
                actions += self._lose_fetch(timeline, Outcome.FAILED, now_ns)
        return actions

    def on_worker_joined(self, worker: int, now_ns: int) -> None:
        """Use a worker again; it is new: idle, its prefix cache empty."""
        del now_ns
        self._router.join(worker)
        if self._fetches is not None:
            self._fetches.pool.join(worker)

    def _restart(
        self, timeline: Timeline, handoff: Handoff | None, lost: int, now_ns: int
    ) -> list[Action]:
        """Take a request off the worker that survived, and start it anew or fail it."""
        actions = self._stop_fetch(timeline.request_id)
        timeline.worker = NO_WORKER
        if handoff is not None:
            actions += self._cancel_handoff(handoff, lost)
            is_source_lost = handoff.source == lost
            timeline.worker = handoff.destination if is_source_lost else handoff.source
        if timeline.num_restarts >= self._config.max_restarts:
            timeline.finished_ns = now_ns
            actions.append(self._end(timeline, Outcome.FAILED))
            return actions
        timeline.num_restarts += 1
        self.num_restarts += 1
        timeline.forget_attempt()
        timeline.is_leaving = timeline.worker != NO_WORKER
        return actions if timeline.is_leaving else actions + self._start_anew(timeline, now_ns)

    def _start_anew(self, timeline: Timeline, now_ns: int) -> list[Action]:
        timeline.is_leaving = False
        timeline.worker = NO_WORKER
        return self._route(timeline, now_ns)
