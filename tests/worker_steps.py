"""One worker's scheduler driven by hand, one step at a time, for tests of its rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.kvcache.block_keys import block_keys
from kvfabric.protocol.step import StepPlan, StepResult
from kvfabric.serving.commands import AddRequest, Cancel, Command, Finished, WorkerEvent
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.request import Goal
from kvfabric.serving.scheduler import Decision, Scheduler

BLOCK_SIZE = 4


@dataclass
class SteppedWorker:
    """A scheduler whose steps are planned and completed by the test; outputs end by token limit.

    Invariants are checked after every call.
    """

    scheduler: Scheduler
    block_size: int = BLOCK_SIZE
    now_ns: int = 0
    num_out: int = 0
    events: list[WorkerEvent] = field(default_factory=list[WorkerEvent])

    def add(
        self,
        request_id: int,
        num_prompt_tokens: int,
        max_tokens: int = 8,
        *,
        goal: Goal = Goal.GENERATE,
        hashes: Sequence[int] = (),
    ) -> None:
        """Let a request arrive; ``hashes`` name its blocks in order."""
        keys = block_keys(
            request_id,
            tuple(hashes),
            num_prompt_tokens=num_prompt_tokens,
            hash_block_tokens=self.block_size,
            block_size=self.block_size,
        )
        self.tell(
            AddRequest(
                request_id=request_id,
                num_prompt_tokens=num_prompt_tokens,
                max_tokens=max_tokens,
                goal=goal,
                keys=keys,
            )
        )

    def tell(self, command: Command) -> None:
        """Give the worker a command."""
        self.events += self.scheduler.handle(command, self.now_ns)
        self.scheduler.check_invariants()

    def cancel(self, request_id: int) -> None:
        """Abort a request."""
        self.tell(Cancel(request_id))

    def decide(self) -> Decision:
        """Plan a step, with what was reserved on the way."""
        decision = self.scheduler.schedule(self.now_ns)
        self.num_out += decision.plan is not None
        self.scheduler.check_invariants()
        return decision

    def plan(self) -> StepPlan:
        """Plan a step that must be there."""
        plan = self.decide().plan
        assert plan is not None
        return plan

    def complete(self, *finished: int) -> list[WorkerEvent]:
        """End the oldest step that is out, in which the outputs of ``finished`` ended."""
        self.now_ns += 10
        self.num_out -= 1
        events = self.scheduler.complete(StepResult(1, finished), self.now_ns)
        self.events += events
        self.scheduler.check_invariants()
        return events

    def step(self, *finished: int) -> StepPlan:
        """Plan a step and end it."""
        plan = self.plan()
        self.complete(*finished)
        return plan

    def drain(self, max_steps: int = 20_000) -> int:
        """End what is out, then run single steps until none is left; return how many."""
        while self.num_out:
            self.complete()
        for num_steps in range(max_steps):
            if self.decide().plan is None:
                return num_steps
            self.complete()
        raise AssertionError("the worker does not come to an end")

    def finished(self) -> dict[int, Finished]:
        """Return how requests finished, by id."""
        ends = [event for event in self.events if isinstance(event, Finished)]
        assert len({end.request_id for end in ends}) == len(ends), "finished twice"
        return {end.request_id: end for end in ends}

    @property
    def num_used(self) -> int:
        """Return the blocks that somebody holds."""
        return self.scheduler.kv.pool.num_used

    def table(self, request_id: int) -> list[int]:
        """Return a copy of a block table."""
        return list(self.scheduler.kv.tables[request_id])


def worker_of(
    num_usable: int = 20,
    *,
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int = 4,
    budget: int = 16,
    max_model_len: int | None = None,
) -> SteppedWorker:
    """Return an idle worker of ``num_usable`` blocks beside the null block."""
    config = SchedulerConfig(
        num_blocks=num_usable + 1,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len or num_usable * block_size,
    )
    return SteppedWorker(Scheduler(config), block_size)


def chunks_of(plan: StepPlan) -> list[tuple[int, int]]:
    """Return ``(request id, tokens)`` of the prompts in a step."""
    return [(chunk.request_id, chunk.num_tokens) for chunk in plan.prefill]
