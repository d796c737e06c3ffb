"""What reuse of prefixes does to prefills and to KV traffic, in whole simulated clusters.

- With a prefix hit rate h a prefill takes (1 - h) of its time while the whole KV cache still moves
  to decode: KV bytes per second of prefill grow as 1 / (1 - h).
- Mooncake conversation trace: prefix hits of an unbounded cache are 36.64 % of 288,500 block
  references (an independent count over the FAST'25 release; 512 tokens per block, 12,031 requests).
"""

import json
import lzma
from fractions import Fraction

import pytest
from clusters import BYTES_PER_TOKEN, GPUS_PER_WORKER, Cluster, ConstantNetwork, workload_of
from pool_clusters import PoolCluster, build_pooled
from reference import reference_path

from kvfabric.perf.prefix_bandwidth import prefill_kv_rate_bps
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.record import Outcome
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.kv_pool import PoolCounts
from kvfabric.serving.kv_pool_config import FetchMode

SECOND = 10**9
BLOCK = 64
KV_BYTES_PER_TOKEN = BYTES_PER_TOKEN * GPUS_PER_WORKER


class TokenTimeModel:
    """Every computed token takes the same time, nothing else takes any."""

    source = Source(SourceKind.ASSUMED, "test double")

    def __init__(self, token_ns: int) -> None:
        self.token_ns = token_ns

    def mixed_step_ns(self, shape: StepShape) -> int:
        return self.token_ns * (shape.num_decodes + sum(num for num, _ in shape.prefill))

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        del context_tokens
        return self.token_ns * num_decodes * num_iterations

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        del context_tokens
        return min(max_iterations, max(1, -(-elapsed_ns // (self.token_ns * num_decodes))))


# ---- the law of reuse --------------------------------------------------------------------------

PROMPT, TOKEN_NS = 16 * BLOCK, 1000


def _reused(num_blocks: int, fetch_mode: FetchMode) -> tuple[int, int]:
    """Return prefill time and bytes handed off of a prompt of 16 blocks, so many of them known."""
    cluster = Cluster(
        num_decode=1,
        num_blocks=600,
        block_size=16,
        max_model_len=4096,
        max_num_batched_tokens=4096,
        hash_block_tokens=BLOCK,
        prefix_caching=False,  # hits come from host memory
    )
    opening = tuple(range(num_blocks)) + tuple(range(1000, 1016 - num_blocks))
    specs = [
        RequestSpec(
            request_id=i,
            arrival_ns=i * SECOND,
            num_prompt_tokens=PROMPT,
            num_output_tokens=1,
            block_hashes=hashes,
        )
        for i, hashes in enumerate([tuple(range(16)), opening])
    ]
    pool = PoolCluster(cluster=cluster, host_bps=1 << 60, fetch_mode=fetch_mode)
    simulation, _ = build_pooled(
        pool, workload_of(specs, BLOCK), ConstantNetwork(), model=TokenTimeModel(TOKEN_NS)
    )
    record = simulation.run(check=True).records[1]
    assert record.num_fetched_tokens == record.num_cached_tokens == num_blocks * BLOCK
    assert record.prefill_end_ns is not None
    assert record.prefill_start_ns is not None
    return record.prefill_end_ns - record.prefill_start_ns, record.transfer_bytes


@pytest.mark.parametrize("fetch_mode", list(FetchMode))
@pytest.mark.parametrize("num_blocks", [0, 4, 8, 12, 15])
def test_kv_bytes_per_second_of_prefill_grow_with_reuse(
    num_blocks: int, fetch_mode: FetchMode
) -> None:
    hit_rate = Fraction(num_blocks, 16)
    full_ns, full_bytes = PROMPT * TOKEN_NS, PROMPT * KV_BYTES_PER_TOKEN
    prefill_ns, num_bytes = _reused(num_blocks, fetch_mode)
    assert num_bytes == full_bytes
    assert prefill_ns == (1 - hit_rate) * full_ns
    rate = Fraction(8 * num_bytes * SECOND, prefill_ns)
    assert rate == Fraction(8 * full_bytes * SECOND, full_ns) / (1 - hit_rate)
    assert prefill_kv_rate_bps(full_bytes, full_ns, hit_rate) == -(-rate // 1)


# ---- sessions ----------------------------------------------------------------------------------


def _sessions(num_sessions: int = 6, num_turns: int = 5) -> list[RequestSpec]:
    """Return turns that each begin with all of the turn before, its answer included."""
    specs: list[RequestSpec] = []
    for turn in range(num_turns):
        for session in range(num_sessions):
            prompt = BLOCK * (2 + 3 * turn) + 10
            hashes = tuple(1000 * (session + 1) + k for k in range(5 + 3 * turn))
            specs.append(
                RequestSpec(
                    request_id=len(specs),
                    arrival_ns=session * 10_000,
                    num_prompt_tokens=prompt,
                    num_output_tokens=BLOCK * 2,
                    block_hashes=hashes,
                    after_request_id=len(specs) - num_sessions if turn else None,
                    think_ns=100_000,
                )
            )
    return specs


def _serve(*, num_decode: int = 1, has_pool: bool = True, **settings: object) -> PoolCounts:
    cluster = Cluster(
        num_prefill=3 - num_decode,
        num_decode=num_decode,
        num_blocks=80,
        block_size=16,
        max_model_len=1200,
        max_num_batched_tokens=2048,
        hash_block_tokens=BLOCK,
    )
    pool = PoolCluster(cluster=cluster, **settings)  # type: ignore[arg-type]
    workload = workload_of(_sessions(), BLOCK)
    simulation, coordinator = build_pooled(pool, workload, ConstantNetwork(), has_pool=has_pool)
    result = simulation.run(check=True)
    assert all(record.outcome is Outcome.FINISHED for record in result.records)
    counts = coordinator.pool_counts
    if not has_pool:
        counts.num_prompt_tokens = sum(record.num_prompt_tokens for record in result.records)
        counts.hbm_tokens = sum(record.num_cached_tokens for record in result.records)
    return counts


@pytest.mark.parametrize("num_decode", [0, 1])
def test_host_memory_hits_more_than_hbm_alone(num_decode: int) -> None:
    alone = _serve(num_decode=num_decode, has_pool=False).hit_rate
    rates = [_serve(num_decode=num_decode, host_blocks=n).hit_rate for n in (1, 20, 60, 1000)]
    assert rates == sorted(rates)
    assert rates[-1] > alone
    assert rates[-1] > rates[0]


def test_blocks_that_decode_hands_back_are_hit_by_the_next_turn() -> None:
    without, handed = _serve(), _serve(hands_back=True)
    assert without.num_handed_back_tokens == 0
    assert handed.handed_back_bytes == KV_BYTES_PER_TOKEN * handed.num_handed_back_tokens > 0
    assert handed.hit_rate > without.hit_rate
    assert handed.remote_tokens > 0  # they lie with the decode worker, and cross the fabric


def test_without_a_fetch_worth_its_time_all_is_as_without_a_pool() -> None:
    cluster = Cluster(
        num_blocks=140,
        block_size=16,
        max_model_len=2048,
        max_num_batched_tokens=256,
        hash_block_tokens=BLOCK,
    )
    pool = PoolCluster(cluster=cluster, host_blocks=1, min_gain_ns=1 << 60)
    workload = workload_of(_sessions(), BLOCK)
    plain, _ = build_pooled(pool, workload, ConstantNetwork(), has_pool=False)
    pooled, coordinator = build_pooled(pool, workload, ConstantNetwork())
    assert plain.run() == pooled.run()
    counts = coordinator.pool_counts
    assert counts.hbm_tokens > 0
    assert counts.host_tokens + counts.remote_tokens + counts.num_fetches == 0


# ---- Mooncake ----------------------------------------------------------------------------------

MOONCAKE_BLOCK = 512
PUBLISHED_HITS = 288_500 - 182_790  # block references less distinct blocks: 36.64 %


def _trace(num_rows: int | None = None) -> list[RequestSpec]:
    path = reference_path("traces/mooncake/conversation_trace.jsonl.xz")
    with lzma.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines][:num_rows]
    return [
        RequestSpec(
            request_id=i,
            arrival_ns=row["timestamp"] * 1_000_000,
            num_prompt_tokens=row["input_length"],
            num_output_tokens=1,
            block_hashes=tuple(row["hash_ids"]),
        )
        for i, row in enumerate(rows)
    ]


def _mooncake_pool(num_workers: int) -> PoolCluster:
    cluster = Cluster(
        num_prefill=num_workers,
        num_blocks=300,
        block_size=MOONCAKE_BLOCK,
        max_model_len=140_000,
        max_num_batched_tokens=140_000,
        hash_block_tokens=MOONCAKE_BLOCK,
        setup_ns=0,
        signal_interval_ns=1,
        prefix_caching=False,  # what HBM keeps is only estimated
    )
    return PoolCluster(cluster=cluster, host_bps=1 << 60, remote_bps=1 << 60, min_gain_ns=-SECOND)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "num_rows"), [(1, None), (4, 3000)])
def test_one_unbounded_pool_hits_what_was_published(num_workers: int, num_rows: int | None) -> None:
    """Served in no time, a request finds all that came before it, wherever it was computed.

    The published count also hits last blocks, which are not full or would leave nothing to compute;
    they are counted beside it: 105,710 = 105,592 + 118.
    """
    specs = _trace(num_rows)
    simulation, coordinator = build_pooled(
        _mooncake_pool(num_workers),
        workload_of(_in_turn(specs), MOONCAKE_BLOCK),
        ConstantNetwork(latency_ns=0),
        model=TokenTimeModel(1),
    )
    simulation.run()
    seen: set[int] = set()
    hits = num_last = 0
    for spec in specs:
        new = [key not in seen for key in spec.block_hashes]
        depth = new.index(True) if True in new else len(new)
        hits += depth
        num_last += depth == len(new)
        seen.update(spec.block_hashes)
    if num_rows is None:
        assert hits == PUBLISHED_HITS
    counts = coordinator.pool_counts
    assert counts.hit_tokens == MOONCAKE_BLOCK * (hits - num_last)
    assert counts.num_fetch_fallbacks == 0


def _in_turn(specs: list[RequestSpec]) -> list[RequestSpec]:
    """Return the requests so far apart that each is over before the next arrives."""
    return [
        RequestSpec(
            request_id=spec.request_id,
            arrival_ns=spec.request_id * SECOND,
            num_prompt_tokens=spec.num_prompt_tokens,
            num_output_tokens=1,
            block_hashes=spec.block_hashes,
        )
        for spec in specs
    ]
