"""Public bug reports about admission, scheduling and routing: the small input and the right answer.

Each test names its source. The ids are those of the project's collection of cases.
"""

from itertools import pairwise

import pytest
from clusters import Cluster, ConstantNetwork, build, workload_of
from worker_steps import SteppedWorker, chunks_of, worker_of

from kvfabric.errors import CapacityError
from kvfabric.kvcache.block_keys import block_keys
from kvfabric.protocol.record import Outcome
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.commands import Finished, KvArrived, Prefilled, WorkerSignal
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.request import Goal
from kvfabric.serving.router import Router, RoutingPolicy


def spec_of(
    request_id: int, arrival_ns: int, num_prompt_tokens: int, num_output_tokens: int = 4
) -> RequestSpec:
    return RequestSpec(
        request_id=request_id,
        arrival_ns=arrival_ns,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
    )


# ---------------------------------------------------------------------- admission


def test_kv_39_pool_without_its_null_block_bounds_the_model_length() -> None:
    """kv-39 https://github.com/RBLN-SW/vllm-rbln/issues/957: 13 blocks of 8,192 hold
    (13 - 1) x 8192 = 98,304 tokens; a maximum length of 106,496 can never be served."""
    with pytest.raises(CapacityError, match="106496 needs 13 KV blocks, the worker has 12"):
        SchedulerConfig(
            num_blocks=13,
            block_size=8192,
            max_num_seqs=4,
            max_num_batched_tokens=8192,
            max_model_len=106_496,
        )


def test_kv_39_prompt_beyond_the_pool_is_rejected_and_blocks_nobody() -> None:
    """kv-39: a prompt of 100,000 waited for ever, and everyone behind it."""
    cluster = Cluster(
        num_blocks=13, block_size=8192, max_num_batched_tokens=8192, max_model_len=98_304
    )
    specs = [spec_of(0, 0, 100_000), spec_of(1, 0, 98_303, 1), spec_of(2, 1, 100)]
    simulation = build(cluster, workload_of(specs), ConstantNetwork())
    outcomes = [record.outcome for record in simulation.run(check=True).records]
    assert outcomes == [Outcome.REJECTED, Outcome.FINISHED, Outcome.FINISHED]


def test_kv_40_request_beyond_all_blocks_is_an_error_before_anything_runs() -> None:
    """kv-40 https://github.com/vllm-project/vllm/issues/39734: prompt and output fit the model but
    not the whole pool, and the scheduler waited for ever."""
    with pytest.raises(CapacityError, match="needs 26 KV blocks, the worker has 25"):
        worker_of(25, max_model_len=101)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("num_decode", [0, 1])
def test_kv_40_every_request_ends_though_each_may_fill_the_pool(
    num_decode: int, *, async_scheduling: bool
) -> None:
    """kv-40: every request ends in bounded steps; here each may grow to all 25 blocks."""
    specs = [spec_of(i, 100 * i, 1 + 31 * i % 99, 100) for i in range(20)]
    cluster = Cluster(
        num_decode=num_decode,
        num_blocks=26,
        max_model_len=100,
        async_scheduling=async_scheduling,
    )
    simulation = build(cluster, workload_of(specs), ConstantNetwork())
    result = simulation.run(check=True)
    assert {record.outcome for record in result.records} == {Outcome.FINISHED}
    assert simulation.num_held_blocks == 0


# ---------------------------------------------------------------------- the scheduler


def huge_then_small(*, num_small: int) -> SteppedWorker:
    """Return a worker of ten blocks with one request running, a huge and small ones waiting."""
    worker = worker_of(10)
    worker.add(0, 8, 8)
    worker.step()
    worker.add(1, 32, 8)  # 8 of the 7 blocks that are free
    for request_id in range(2, 2 + num_small):
        worker.add(request_id, 4, 4)
    return worker


def test_sc_1_small_request_waits_behind_a_huge_one() -> None:
    """sc-1 https://github.com/vllm-project/vllm/pull/36390: huge, small, small, and blocks for the
    small ones only. The policy here is first come first served, so they wait."""
    worker = huge_then_small(num_small=2)
    while 0 not in worker.finished():
        assert worker.step().prefill == ()
    assert chunks_of(worker.step())[0] == (1, 16)


def test_sc_1_wait_of_the_huge_request_is_bounded() -> None:
    """sc-1: it waits for those that ran before it, whatever arrives later."""
    worker = huge_then_small(num_small=500)
    num_steps = 0
    while worker.scheduler.num_waiting == 501:
        worker.step()
        num_steps += 1
    assert num_steps == 8  # seven that request 0 still needs, and its own first


def test_sc_1_wait_of_the_small_requests_is_bounded() -> None:
    """sc-1: they wait until the huge one has its blocks and leaves them some."""
    worker = huge_then_small(num_small=2)
    worker.drain()
    order = [event.request_id for event in worker.events if isinstance(event, Finished)]
    assert order == [0, 1, 2, 3]


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("num_blocks", [49, 60, 100, 400, 999])
def test_sc_2_undersized_pool_preempts_and_still_ends(
    num_blocks: int, *, async_scheduling: bool
) -> None:
    """sc-2 https://github.com/inference-sim/inference-sim/issues/297: 200 requests of 512 + 256
    tokens at 2,000 a second, under 1,000 blocks: the preemption loop never ended."""
    # steps of the test double take about a thousandth of real ones, so the rate is that much higher
    specs = [spec_of(i, 500 * i, 512, 256) for i in range(200)]
    cluster = Cluster(
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=768,
        async_scheduling=async_scheduling,
    )
    simulation = build(cluster, workload_of(specs), ConstantNetwork())
    result = simulation.run()
    assert {record.outcome for record in result.records} == {Outcome.FINISHED}
    assert {record.num_output_tokens for record in result.records} == {256}
    assert (result.num_preemptions > 0) == (num_blocks > 64)  # below, only one prompt fits
    assert simulation.num_held_blocks == 0


def test_sc_2_pool_below_one_request_is_refused_at_once() -> None:
    """sc-2: the right answer is an error that says the KV cache is too small: 768 tokens are 48
    blocks of 16."""
    with pytest.raises(CapacityError, match="768 needs 48 KV blocks, the worker has 47"):
        worker_of(47, block_size=16, budget=2048, max_model_len=768)


def test_sc_4_preempted_request_is_not_looked_at_again_in_the_same_step() -> None:
    """sc-4 https://github.com/EricLBuehler/mistral.rs/pull/2043: it went to the front of the queue,
    was admitted in the same step, and preempted again, for ever."""
    worker = worker_of(6)
    worker.add(1, 8, 12)
    worker.add(2, 8, 12)
    worker.add(3, 1, 1)
    worker.step()
    while worker.scheduler.num_preemptions == 0:
        plan = worker.step()
    assert plan.prefill == ()
    assert plan.num_decodes == 1
    assert worker.scheduler.num_preemptions == 1


def test_sc_4_preempted_requests_make_progress_between_two_preemptions() -> None:
    """sc-4: whoever is admitted computes a token at least, so the worker drains."""
    worker = worker_of(12, max_num_seqs=8)
    for request_id in range(20):
        worker.add(request_id, 4, 40)
    num_steps = worker.drain()
    assert worker.scheduler.num_preemptions > 0
    assert {end.num_outputs for end in worker.finished().values()} == {40}
    assert num_steps <= 20 * 40 + 3 * worker.scheduler.num_preemptions


def test_sc_5_holder_of_blocks_is_never_behind_one_that_holds_none() -> None:
    """sc-5 https://github.com/vllm-project/vllm/pull/57841: A waits and holds nothing, B has its KV
    loaded and holds blocks that A needs: B runs."""
    worker = worker_of(10)
    worker.add(2, 20, 4, goal=Goal.DECODE)
    worker.decide()
    worker.add(1, 32, 4)  # A: 8 blocks where 5 are free
    worker.tell(KvArrived(2))
    plan = worker.step()
    assert [join.request_id for join in plan.joined] == [2]
    worker.drain()
    assert set(worker.finished()) == {1, 2}


def test_sc_7_aggregated_prefills_slow_decodes_to_one_token_a_chunk() -> None:
    """sc-7 https://github.com/sgl-project/sglang/pull/40443: prompts of 256 K in chunks, and the
    requests that decode fall to 1.4 tokens/s, one for every step with a chunk.

    Here a prompt of 160 tokens takes ten steps of a budget of 16 beside one decode: 15 tokens each
    leave eleven.
    """
    worker = worker_of(60, max_num_seqs=2, max_model_len=200)
    worker.add(0, 4, 40)
    worker.step()
    worker.add(1, 160, 1)
    plans = [worker.step() for _ in range(11)]
    assert [chunks_of(plan) for plan in plans] == [[(1, 15)]] * 10 + [[(1, 10)]]
    assert [plan.num_decodes for plan in plans] == [1] * 11


def test_sc_7_decode_worker_of_its_own_is_not_slowed_by_prefills() -> None:
    """sc-7: this interference is what a decode worker of its own removes: it ends one step of
    decoding after the other, whatever the prefill worker computes meanwhile."""

    def run(num_decode: int, prompts_at_ns: int | None) -> tuple[int, int]:
        """Return when request 0 has its first token, and how long it decodes."""
        ids = range(1, 11) if prompts_at_ns is not None else range(0)
        prompts = [spec_of(i, prompts_at_ns or 0, 180, 1) for i in ids]
        cluster = Cluster(num_decode=num_decode, num_blocks=400, max_tokens=20)
        network = ConstantNetwork(latency_ns=10**6)
        specs = [spec_of(0, 0, 4, 20), *prompts]
        record = build(cluster, workload_of(specs), network).run().records[0]
        assert record.first_token_ns is not None
        assert record.finished_ns is not None
        return record.first_token_ns, record.finished_ns - record.first_token_ns

    def decode_ns(num_decode: int) -> tuple[int, int]:
        """Return how long it decodes alone, and beside ten prompts that arrive meanwhile."""
        first_token_ns, alone_ns = run(num_decode, None)
        return alone_ns, run(num_decode, first_token_ns + 1)[1]

    alone_ns, beside_ns = decode_ns(1)
    assert beside_ns == alone_ns
    alone_ns, beside_ns = decode_ns(0)
    assert beside_ns > alone_ns


# ---------------------------------------------------------------------- the router

INTERVAL_NS = 50
HASH_TOKENS = 16
POLICIES = list(RoutingPolicy)


def router_of(policy: RoutingPolicy, num_prefill: int = 2, num_decode: int = 0) -> Router:
    return Router(
        policy,
        num_prefill=num_prefill,
        num_decode=num_decode,
        signal_interval_ns=INTERVAL_NS,
    )


def route(router: Router, hashes: tuple[int, ...], now_ns: int) -> int:
    num_tokens = HASH_TOKENS * len(hashes)
    keys = block_keys(
        0,
        hashes,
        num_prompt_tokens=num_tokens,
        hash_block_tokens=HASH_TOKENS,
        block_size=HASH_TOKENS,
    )
    return router.choose_prefill(num_tokens, keys.hashes, HASH_TOKENS, now_ns)


@pytest.mark.parametrize("policy", POLICIES)
def test_rt_1_requests_one_at_a_time_use_both_workers(policy: RoutingPolicy) -> None:
    """rt-1 https://github.com/AMD-AGI/Infera/pull/103: 448 requests, each sent after the one before
    has ended: nothing is ever in flight, the load term vanished, and all went to one worker.
    Bad: 448 : 0, round robin: 224 : 224."""
    router = router_of(policy)
    chosen = [route(router, (10 * i, 10 * i + 1), i * INTERVAL_NS) for i in range(448)]
    assert [chosen.count(0), chosen.count(1)] == [224, 224]


@pytest.mark.parametrize("policy", POLICIES)
def test_rt_1_sessions_one_request_at_a_time_use_both_workers(policy: RoutingPolicy) -> None:
    """rt-1: the requests were turns of sessions, 56 of 8 here, in turn. A session may stay where
    its prefix is, but the sessions must not all be on one worker."""
    router = router_of(policy)
    chosen: list[int] = []
    for turn in range(8):
        for session in range(56):
            hashes = tuple(100 * session + i for i in range(turn + 1))
            chosen.append(route(router, hashes, len(chosen) * INTERVAL_NS))
    assert [chosen.count(0), chosen.count(1)] == [224, 224]


def test_rt_1_session_stays_where_its_prefix_is() -> None:
    """rt-1: with the fix published there, hits and balance go together."""
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    for turn in range(8):
        workers = [
            route(
                router,
                tuple(100 * session + i for i in range(turn + 1)),
                (56 * turn + session) * INTERVAL_NS,
            )
            for session in range(56)
        ]
        assert workers == [session % 2 for session in range(56)]


def test_rt_1_decode_workers_are_all_used_too() -> None:
    """rt-1: the same for the workers that only decode."""
    router = router_of(RoutingPolicy.ROUND_ROBIN, 1, 2)
    chosen = [router.choose_decode(100, i * INTERVAL_NS) for i in range(448)]
    assert [chosen.count(1), chosen.count(2)] == [224, 224]


def test_rt_1_sessions_with_a_shared_head_use_both_workers() -> None:
    """rt-1: the same where all sessions begin with one system prompt, as agents do."""
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    chosen: list[int] = []
    for turn in range(8):
        for session in range(56):
            hashes = (1, *(100 + 100 * session + i for i in range(turn + 1)))
            chosen.append(route(router, hashes, len(chosen) * INTERVAL_NS))
    assert min(chosen.count(0), chosen.count(1)) >= 448 // 4


def test_rt_3_miss_goes_to_the_idle_worker_not_to_the_small_cache() -> None:
    """rt-3 https://github.com/sgl-project/sglang/pull/14532: A has cached little because it is
    stuck with heavy requests, B has cached much and is idle: a miss must go to B."""
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    router.observe(0, WorkerSignal(num_queued_tokens=50_000, num_requests=9), 0)
    for i in range(100):
        assert route(router, (1000 + i,), (1 + i) * INTERVAL_NS) == 1
    assert route(router, (7, 8), 200 * INTERVAL_NS) == 1


@pytest.mark.parametrize("policy", [RoutingPolicy.LEAST_LOADED, RoutingPolicy.PREFIX_AWARE])
def test_rt_3_stale_report_does_not_draw_a_whole_burst(policy: RoutingPolicy) -> None:
    """rt-3, the other way round: a worker that looked idle must not get everything that arrives
    before its next report."""
    router = router_of(policy)
    router.observe(0, WorkerSignal(num_queued_tokens=64, num_requests=1), 0)
    chosen = [route(router, (10 * i, 10 * i + 1), INTERVAL_NS) for i in range(100)]
    assert abs(chosen.count(0) - chosen.count(1)) <= 2
    assert max(_runs(chosen)) <= 3


def _runs(chosen: list[int]) -> list[int]:
    """Return how many in a row went to the same worker."""
    lengths = [1]
    for last, now in pairwise(chosen):
        if now == last:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def test_first_scheduled_order_is_the_order_of_arrival() -> None:
    """sc-1, whole run: without preemption nobody's prefill starts before an earlier one's."""
    worker = worker_of(30, max_num_seqs=3)
    for request_id in range(40):
        worker.add(request_id, 1 + 7 * request_id % 30, 5)
    worker.drain()
    started = [event.started_ns for event in worker.events if isinstance(event, Prefilled)]
    assert started == sorted(started)
