"""A request that is cancelled in any state leaves no block behind.

Public reports, each a state in which an abort lost blocks: waiting for remote KV
(https://github.com/vllm-project/vllm/issues/46283), at the very end of a prefill whose blocks were
about to be held (https://github.com/vllm-project/vllm/pull/29906), and one block lost with every
request (https://github.com/kekzl/imp/issues/1115).
"""

from collections.abc import Callable

import pytest
from clusters import Cluster, ConstantNetwork, build, workload_of
from worker_steps import SteppedWorker, worker_of

from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.commands import Cancelled, Finished, KvArrived
from kvfabric.serving.request import Goal

VICTIM = 1

# ---------------------------------------------------------------------- one worker, state by state


def waiting(worker: SteppedWorker) -> None:
    """Leave the victim in the queue: it does not fit."""
    worker.add(VICTIM, 76, 2)
    worker.step()
    assert worker.scheduler.num_waiting == 1


def in_part(worker: SteppedWorker) -> None:
    """Leave a prompt with some of its chunks computed."""
    worker.add(VICTIM, 40, 2)
    worker.step()


def decoding(worker: SteppedWorker) -> None:
    """Leave a request with outputs."""
    worker.add(VICTIM, 6, 20)
    for _ in range(4):
        worker.step()


def at_its_limit(worker: SteppedWorker) -> None:
    """Leave a request with one token to go: the next step planned is its last."""
    worker.add(VICTIM, 6, 3)
    worker.step()
    worker.step()


def held(worker: SteppedWorker) -> None:
    """Leave a computed prompt whose blocks wait for their hand-off."""
    worker.add(VICTIM, 6, 3, goal=Goal.PREFILL)
    worker.step()


def about_to_be_held(worker: SteppedWorker) -> None:
    """Leave a prompt in a queue, whose only step ends with its hand-off."""
    worker.add(VICTIM, 6, 3, goal=Goal.PREFILL)


def awaiting_kv(worker: SteppedWorker) -> None:
    """Leave a request with blocks and no bytes."""
    worker.add(VICTIM, 6, 3, goal=Goal.DECODE)
    worker.step()


def loaded(worker: SteppedWorker) -> None:
    """Leave a request whose bytes are there, to join the next step."""
    awaiting_kv(worker)
    worker.tell(KvArrived(VICTIM))


def preempted(worker: SteppedWorker) -> None:
    """Leave a request that gave way to an older one."""
    worker.add(VICTIM, 60, 20)
    while worker.scheduler.num_preemptions == 0:
        worker.step()


def sharing(worker: SteppedWorker) -> None:
    """Leave a request that shares hit blocks with another one."""
    worker.add(3, 9, 20, hashes=(11, 12, 13))
    worker.add(VICTIM, 9, 20, hashes=(11, 12, 23))
    worker.step()
    assert worker.table(3)[:2] == worker.table(VICTIM)[:2]


STATES = [
    waiting,
    in_part,
    decoding,
    at_its_limit,
    held,
    about_to_be_held,
    awaiting_kv,
    loaded,
    preempted,
    sharing,
]


def name_of(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("num_out", [0, 1, 2])
@pytest.mark.parametrize("reach", STATES, ids=name_of)
def test_abort_leaves_no_block_behind(reach: Callable[[SteppedWorker], None], num_out: int) -> None:
    """Whether no step is out, one, or two: all blocks come back, and it ends exactly once."""
    worker = worker_of(20)
    worker.add(0, 8, 40)
    worker.step()
    reach(worker)
    for _ in range(num_out):
        worker.plan()
    worker.cancel(VICTIM)
    worker.drain()
    assert worker.num_used == 0
    assert worker.scheduler.is_drained
    ends = [e for e in worker.events if isinstance(e, Cancelled | Finished)]
    assert [end.request_id for end in ends].count(VICTIM) == 1
    assert worker.finished()[0].num_outputs == 40


@pytest.mark.parametrize("reach", STATES, ids=name_of)
def test_abort_twice_is_as_once(reach: Callable[[SteppedWorker], None]) -> None:
    worker = worker_of(20)
    worker.add(0, 8, 40)
    worker.step()
    reach(worker)
    worker.plan()
    worker.cancel(VICTIM)
    worker.cancel(VICTIM)
    worker.drain()
    worker.cancel(VICTIM)
    assert worker.num_used == 0
    assert worker.events.count(Cancelled(VICTIM)) <= 1


@pytest.mark.parametrize("reach", [waiting, in_part, decoding, held, awaiting_kv], ids=name_of)
def test_place_of_an_aborted_request_is_taken_by_the_next(
    reach: Callable[[SteppedWorker], None],
) -> None:
    """What is given back can be used: a request that needs nearly the whole pool gets in."""
    worker = worker_of(20)
    worker.add(0, 8, 4)
    worker.step()
    reach(worker)
    worker.add(2, 79, 1)
    worker.cancel(VICTIM)
    worker.drain()
    assert worker.finished().keys() >= {0, 2}


# ---------------------------------------------------------------------- whole runs, every instant


def run(cluster: Cluster, cancel_ns: int | None, request_id: int) -> tuple[RequestRecord, ...]:
    specs = [
        RequestSpec(request_id=i, arrival_ns=700 * i, num_prompt_tokens=18, num_output_tokens=20)
        for i in range(6)
    ]
    simulation = build(cluster, workload_of(specs), ConstantNetwork())
    if cancel_ns is not None:
        simulation.cancel_at(request_id, cancel_ns)
    records = simulation.run(check=True).records
    assert simulation.num_held_blocks == 0
    return records


def instants_of(records: tuple[RequestRecord, ...]) -> list[int]:
    """Return every instant at which something became of a request, and those around it."""
    known = {
        instant
        for record in records
        for instant in (
            record.arrival_ns,
            record.prefill_start_ns,
            record.prefill_end_ns,
            record.reserved_ns,
            record.transferred_ns,
            record.first_token_ns,
            record.finished_ns,
        )
        if instant is not None
    }
    return sorted({max(0, instant + shift) for instant in known for shift in (-1, 0, 1)})


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("num_decode", [0, 1])
def test_abort_at_every_instant_of_a_run_leaves_no_block_behind(
    num_decode: int, *, async_scheduling: bool
) -> None:
    """bm-8 in particular: a time-out equal to the end of a prefill."""
    cluster = Cluster(
        num_decode=num_decode,
        num_blocks=26,
        max_model_len=100,
        max_num_seqs=4,
        async_scheduling=async_scheduling,
    )
    undisturbed = run(cluster, None, 0)
    assert {record.outcome for record in undisturbed} == {Outcome.FINISHED}
    outcomes: set[Outcome] = set()
    for cancel_ns in instants_of(undisturbed):
        records = run(cluster, cancel_ns, 2)
        assert len(records) == len(undisturbed)
        outcomes.add(records[2].outcome)
        others = {record.outcome for record in records if record.request_id != 2}
        assert others == {Outcome.FINISHED}
    assert outcomes == {Outcome.FINISHED, Outcome.ABORTED}
