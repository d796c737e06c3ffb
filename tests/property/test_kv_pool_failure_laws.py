"""Laws of the serving core with a KV pool, while workers die and fetches are late."""

from dataclasses import replace

from clusters import BYTES_PER_TOKEN, GPUS_PER_WORKER, ConstantNetwork, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_clusters import PoolCluster, build_pooled, stepping
from serving_cases import HASH_TOKENS, assert_ordered, cancellations, clusters, limit, requests

from kvfabric.kvcache.tiers import WritePolicy
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.coordinator_config import OnExpiry
from kvfabric.serving.kv_pool_config import FetchMode
from kvfabric.serving.prefix_placement import PlacementPolicy
from kvfabric.sim.simulation import RunResult

deaths = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 60_000),
        st.one_of(st.none(), st.integers(0, 20_000)),
    ),
    max_size=4,
)


@st.composite
def sessions(draw: st.DrawFn) -> list[RequestSpec]:
    """Draw prompts over few openings, with hashes that reach into their outputs."""
    now_ns = 0
    specs: list[RequestSpec] = []
    for request_id in range(draw(st.integers(2, 16))):
        now_ns += draw(st.sampled_from([0, 300, 2000, 9000]))
        prompt, output = draw(st.integers(9, 60)), draw(st.integers(1, 50))
        group = draw(st.integers(0, 1))
        specs.append(
            RequestSpec(
                request_id=request_id,
                arrival_ns=now_ns,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                block_hashes=tuple(1000 * group + i for i in range((prompt + output) // 8 + 1)),
            )
        )
    return specs


@st.composite
def pools(draw: st.DrawFn) -> PoolCluster:
    """Draw pools in which blocks are often evicted, fetches slow and servers shared."""
    cluster = draw(clusters())
    return PoolCluster(
        cluster=replace(
            cluster,
            handoff_deadline_ns=draw(st.sampled_from([1 << 60, 20_000, 3_000])),
            on_expiry=draw(st.sampled_from(list(OnExpiry))),
            max_restarts=draw(st.integers(0, 2)),
            num_prefill=draw(st.sampled_from([1, 2, 3, 3])),
            prefix_caching=draw(st.sampled_from([True, False, False])),
        ),
        workers_per_server=draw(st.sampled_from([1, 1, 2])),
        host_blocks=draw(st.sampled_from([2, 12, 1000, 1000])),
        storage_blocks=draw(st.sampled_from([0, 0, 10, 1000])),
        host_bps=draw(st.sampled_from([48 * 10**9, 48 * 10**7, 48 * 10**6])),
        storage_bps=draw(st.sampled_from([16 * 10**9, 16 * 10**7])),
        write=draw(st.sampled_from(list(WritePolicy))),
        policy=draw(st.sampled_from([*PlacementPolicy, PlacementPolicy.LEAST_LOADED])),
        min_gain_ns=draw(st.sampled_from([-(10**6), -(10**6), 0])),
        lag_ns=draw(st.sampled_from([0, 0, 3_000])),
        fetch_mode=draw(st.sampled_from(list(FetchMode))),
        fetch_deadline_ns=draw(st.sampled_from([None, None, None, 2_000])),
        hands_back=draw(st.booleans()),
    )


workloads = st.one_of(requests(), sessions(), sessions())
latencies = st.sampled_from([500, 3_000, 15_000])


def assert_prefix_in_time(record: RequestRecord) -> None:
    """INV-3, and a prefix arrives after the request and before the end of its prefill."""
    assert_ordered(record)
    if record.fetched_ns is not None and record.prefill_end_ns is not None:
        assert record.routed_ns is not None
        assert record.routed_ns <= record.fetched_ns <= record.prefill_end_ns
        assert 0 < record.num_fetched_tokens <= record.num_cached_tokens


@settings(max_examples=150)
@given(workloads, pools(), cancellations, deaths, latencies)
def test_every_request_ends_once_and_no_block_is_left(
    specs: list[RequestSpec],
    pool: PoolCluster,
    cancels: list[tuple[int, int]],
    died: list[tuple[int, int, int | None]],
    latency_ns: int,
) -> None:
    """INV-1, INV-3, INV-4, INV-8, INV-10: checked at every instant; jumping changes nothing."""
    results: list[RunResult] = []
    for changed in (pool, stepping(pool)):
        simulation, coordinator = build_pooled(
            changed, workload_of(specs, HASH_TOKENS), ConstantNetwork(latency_ns)
        )
        for request_id, time_ns in cancels:
            simulation.cancel_at(request_id, time_ns)
        num_workers = pool.cluster.num_prefill + pool.cluster.num_decode
        for place, time_ns, pause_ns in died:
            simulation.lose_worker_at(place % num_workers, time_ns)
            if pause_ns is not None:
                simulation.join_worker_at(place % num_workers, time_ns + pause_ns)
        results.append(simulation.run(check=True))
        assert simulation.num_held_blocks == 0
        counts = coordinator.pool_counts
        assert 0 <= counts.hit_tokens < max(1, counts.num_prompt_tokens)
        assert counts.hbm_tokens >= 0
    jump, single = results
    assert [record.request_id for record in jump.records] == [spec.request_id for spec in specs]
    ended = {Outcome.FINISHED, Outcome.ABORTED, Outcome.FAILED}
    assert all(record.outcome in ended for record in jump.records)
    assert jump.records == single.records
    assert jump.log_digest == single.log_digest


@settings(max_examples=100)
@given(workloads, pools(), latencies)
def test_fetched_bytes_are_tokens_times_bytes_per_token(
    specs: list[RequestSpec], pool: PoolCluster, latency_ns: int
) -> None:
    """INV-11 with fetches: the network moves hand-offs and prefixes of other servers, no more.

    Every token of a prompt is counted once, in the tier where it was found or as computed.
    """
    calm = replace(
        pool,
        fetch_deadline_ns=None,
        cluster=replace(pool.cluster, handoff_deadline_ns=1 << 60),
    )
    network = ConstantNetwork(latency_ns)
    simulation, coordinator = build_pooled(calm, workload_of(specs, HASH_TOKENS), network)
    records = simulation.run(check=True).records
    counts, token_bytes = coordinator.pool_counts, BYTES_PER_TOKEN * GPUS_PER_WORKER
    for spec, record in zip(specs, records, strict=True):
        assert record.outcome is Outcome.FINISHED
        assert record.num_output_tokens == min(spec.num_output_tokens, limit(spec, pool.cluster))
        assert_prefix_in_time(record)
    handed_off = sum(record.transfer_bytes for record in records)
    assert network.moved_bytes == handed_off + counts.remote_bytes
    assert counts.remote_bytes == counts.remote_tokens * token_bytes
    assert counts.host_bytes == counts.host_tokens * token_bytes
    assert counts.storage_bytes == counts.storage_tokens * token_bytes
    assert counts.num_prompts == len(specs)
    assert counts.num_prompt_tokens == sum(spec.num_prompt_tokens for spec in specs)
    assert counts.hit_tokens == sum(record.num_cached_tokens for record in records)
    fetched = counts.host_tokens + counts.remote_tokens + counts.storage_tokens
    assert fetched == sum(record.num_fetched_tokens for record in records)
