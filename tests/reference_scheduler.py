"""An independent vLLM V1 scheduler, request by request and step by step: the oracle of ours.

Written from the rules (one or two steps out, running first, admission of whole prompts, youngest
preempted, own prefix found again, no admission in a step that preempted), sharing no code with the
package and none of its short cuts: lists, one iteration at a time, no decode totals.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Job:
    ident: int
    arrival: int
    prompt: int
    output: int
    limit: int  # most output tokens, known to the scheduler; ``output`` is not
    computed: int = 0
    produced: int = 0
    expected: int = 0  # tokens of steps that are out
    blocks: list[int] = field(default_factory=list[int])
    first: int | None = None
    last: int | None = None
    preemptions: int = 0
    prefilling: bool = True

    @property
    def tokens(self) -> int:
        return self.prompt + self.produced + self.expected

    @property
    def is_at_limit(self) -> bool:
        return self.produced + self.expected >= self.limit


@dataclass
class Pool:
    size: int
    free: "OrderedDict[int, None]" = field(init=False)
    block_of: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    key_of: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def __post_init__(self) -> None:
        self.free = OrderedDict((block, None) for block in range(1, self.size))

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            key = self.key_of.pop(block, None)
            if key is not None:
                del self.block_of[key]
            taken.append(block)
        return taken

    def give(self, job: Job, num_full: int) -> None:
        for index, block in enumerate(job.blocks[:num_full]):
            key = (job.ident, index)
            if key not in self.block_of and block not in self.key_of:
                self.block_of[key] = block
                self.key_of[block] = key
        for block in reversed(job.blocks):
            self.free[block] = None
        job.blocks = []


@dataclass(frozen=True)
class Limits:
    num_blocks: int
    block_size: int
    max_num_seqs: int
    budget: int


Plan = list[tuple[Job, int, int]]  # job, new tokens, tokens before


def simulate(
    jobs: Sequence[Job],
    limits: Limits,
    step_ns: Callable[[int, int, list[tuple[int, int]]], int],
    depth: int = 1,
) -> None:
    """Fill in first, last and preemptions; ``step_ns(num_decodes, context, prefill chunks)``.

    ``depth`` steps may be out: 1 is synchronous scheduling, 2 asynchronous.
    """
    pool = Pool(limits.num_blocks)
    waiting: list[Job] = []
    running: list[Job] = []
    pending = sorted(jobs, key=lambda job: (job.arrival, job.ident))
    out: deque[tuple[Plan, int]] = deque()
    now = busy_until = 0
    while pending or waiting or running:
        while pending and pending[0].arrival <= now:
            waiting.append(pending.pop(0))
        plan = _plan(waiting, running, pool, limits, is_alone=not out)
        if plan:
            decodes = [before for job, _, before in plan if not job.prefilling]
            chunks = [(count, before) for job, count, before in plan if job.prefilling]
            busy_until = max(now, busy_until) + step_ns(len(decodes), sum(decodes), chunks)
            out.append((_expect(plan), busy_until))
            if len(out) < depth:
                continue
        if out:
            plan, now = out.popleft()
            _apply(plan, waiting, running, pool, now)
        else:
            now = max(now, pending[0].arrival)


def _plan(
    waiting: list[Job], running: list[Job], pool: Pool, limits: Limits, *, is_alone: bool
) -> Plan:
    plan, has_preempted = _plan_running(waiting, running, pool, limits)
    budget = limits.budget - sum(count for _, count, _ in plan)
    if not has_preempted or (is_alone and not plan):
        _admit(waiting, running, pool, limits, plan, budget)
    return plan


def _plan_running(
    waiting: list[Job], running: list[Job], pool: Pool, limits: Limits
) -> tuple[Plan, bool]:
    plan: Plan = []
    has_preempted = False
    budget, index = limits.budget, 0
    while index < len(running):
        job = running[index]
        if job.produced + job.expected and job.is_at_limit:
            index += 1
            continue
        count = min(job.tokens - job.computed, budget)
        need = -(-(job.computed + count) // limits.block_size) - len(job.blocks)
        while need > len(pool.free):
            victim = running.pop()
            has_preempted = True
            _preempt(victim, pool, limits.block_size)
            waiting.insert(0, victim)
            if victim is job:
                return plan, True
        job.blocks += pool.take(need)
        if count:
            plan.append((job, count, job.computed))
        budget -= count
        index += 1
    return plan, has_preempted


def _preempt(job: Job, pool: Pool, block_size: int) -> None:
    pool.give(job, (job.computed - job.expected) // block_size)
    job.computed = 0
    job.prefilling = True
    job.preemptions += 1


def _admit(
    waiting: list[Job], running: list[Job], pool: Pool, limits: Limits, plan: Plan, budget: int
) -> None:
    size = limits.block_size
    while waiting and budget > 0 and len(running) < limits.max_num_seqs:
        job = waiting[0]
        if -(-job.tokens // size) > len(pool.free):
            return
        waiting.pop(0)
        hits = _own_prefix(job, pool, size)
        for block in hits:
            del pool.free[block]
        before = len(hits) * size
        count = min(job.tokens - before, budget)
        job.blocks = hits + pool.take(-(-(before + count) // size) - len(hits))
        job.computed = before
        running.append(job)
        plan.append((job, count, before))
        budget -= count


def _own_prefix(job: Job, pool: Pool, size: int) -> list[int]:
    hits: list[int] = []
    for index in range((job.tokens - 1) // size):
        block = pool.block_of.get((job.ident, index))
        if block is None:
            break
        hits.append(block)
    return hits


def _expect(plan: Plan) -> Plan:
    """Count the step's tokens as there; keep only the jobs that get one."""
    sampled: Plan = []
    for job, count, before in plan:
        job.computed += count
        if job.computed == job.tokens:
            job.expected += 1
            job.prefilling = False
            sampled.append((job, count, before))
    return sampled


def _apply(plan: Plan, waiting: list[Job], running: list[Job], pool: Pool, now: int) -> None:
    for job, _, _ in plan:
        if job.last is not None:
            continue  # ended a step ago
        job.expected -= 1
        job.produced += 1
        if job.first is None:
            job.first = now
        if job.produced == min(job.output, job.limit):
            job.last = now
            (running if job in running else waiting).remove(job)
            pool.give(job, 0)
