"""Everything a run was told and what it did, so that it can be run again in virtual time.

The digest takes the lines that ``sim.Simulation`` digests, in its format: a simulation given the
recorded arrivals and durations must come to the same digest.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.step import StepPlan, StepShape

NEVER_NS = 1 << 60
"""The end of a step whose worker died."""


class RecordedStep(NamedTuple):
    """A step of a worker: what it had to do, when it was planned and when its end was handled.

    ``layers_ns`` are the instants when layer groups were reported, but for the last one, which ends
    with the step.
    """

    worker_id: int
    shape: StepShape
    start_ns: int
    end_ns: int
    layers_ns: tuple[int, ...] = ()


class RecordedArrival(NamedTuple):
    """A request as the control saw it."""

    time_ns: int
    request_id: int
    num_prompt_tokens: int
    max_tokens: int
    block_hashes: tuple[int, ...]
    namespace: int


@dataclass(slots=True)
class DecisionLog:
    """One run; instants are ns since its start.

    Attributes:
        lines: what happened, in order, as the simulation writes it.
        arrivals: in order.
        steps: in the order of their ends, those of dead workers when these were lost.
        transfers: ``(start, end)`` of transfers that arrived, by id.
        transfer_bytes: of transfers that arrived, by id.
        cancels: ``(instant, request id)``.
        broken: ``(instant, transfer id)``, of transfers that failed while under way.
        lost: ``(instant, worker id)``.
        joined: ``(instant, worker id)``, of workers that came back.
        records: of ended requests, in order.
        all_hashes: by request, of the full blocks of prompt and output, where these can be found.
        num_produced: by request, of outputs that a worker brought to their end, also where the
            client had given up meanwhile.
    """

    lines: list[bytes] = field(default_factory=list[bytes])
    arrivals: list[RecordedArrival] = field(default_factory=list[RecordedArrival])
    steps: list[RecordedStep] = field(default_factory=list[RecordedStep])
    transfers: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    transfer_bytes: dict[int, int] = field(default_factory=dict[int, int])
    cancels: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    broken: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    joined: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    records: list[RequestRecord] = field(default_factory=list[RequestRecord])
    all_hashes: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    num_produced: dict[int, int] = field(default_factory=dict[int, int])

    def note(self, now_ns: int, kind: str, ident: int, other: int = -1) -> None:
        """Add a line."""
        self.lines.append(b"%d %b %d %d\n" % (now_ns, kind.encode(), ident, other))

    def keep_hashes(self, request_id: int, hashes: list[int]) -> None:
        """Keep the hashes of a request, unless an earlier attempt has come further."""
        if len(hashes) >= len(self.all_hashes.get(request_id, ())):
            self.all_hashes[request_id] = hashes

    def add_step(
        self,
        worker_id: int,
        plan: StepPlan,
        start_ns: int,
        end_ns: int,
        layers_ns: Sequence[int] = (),
    ) -> None:
        """Add a step that has ended, or never will."""
        chunks = [(chunk.num_tokens, chunk.num_history_tokens) for chunk in plan.prefill]
        shape = StepShape(plan.num_decodes, plan.context_tokens, tuple(chunks))
        self.steps.append(RecordedStep(worker_id, shape, start_ns, end_ns, tuple(layers_ns)))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all lines, as ``sim.RunResult.log_digest``."""
        return hashlib.sha256(b"".join(self.lines)).hexdigest()
