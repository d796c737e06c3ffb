"""Laws of the control with a KV pool, under deaths, joins, cancellations and late bytes."""

from dataclasses import replace
from itertools import product

import pytest
from faulty_cluster import HASH_TOKENS, MAX_TOKENS, RANK_PAIRS, SCHEDULER, rank_bytes
from pool_clusters import linear_prefill_ns
from pool_faults import PooledFaultyCluster

from kvfabric.kvcache.tiers import TierSpec, WritePolicy
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.coordinator_config import (
    CoordinatorConfig,
    HandoffMode,
    OnExpiry,
    Reservation,
)
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_placement import PlacementConfig, PlacementPolicy

MODES = list(product(FetchMode, Reservation, HandoffMode))
TOKEN_BYTES = 4


def pool_config(
    fetch_mode: FetchMode, *, num_workers: int, hbm_blocks: int, storage_bps: int
) -> KvPoolConfig:
    """Return a pool in which every fetch seems worth it; two of its workers share a server."""
    servers = (0, 0, *range(1, num_workers - 1))
    return KvPoolConfig(
        worker_servers=servers,
        server_gpus=((0, 1, 2, 3), *((2 * w, 2 * w + 1) for w in range(2, num_workers))),
        hbm_blocks=hbm_blocks,
        host=TierSpec(capacity_blocks=8, read_bps=1),
        storage=TierSpec(capacity_blocks=24, read_bps=1),
        policy=WritePolicy.THROUGH,
        placement=PlacementConfig(
            policy=PlacementPolicy.LEAST_LOADED,
            block_tokens=HASH_TOKENS,
            queue_tokens_per_s=10**9,
            prefill_ns=linear_prefill_ns,
            kv_bytes=lambda num_tokens: TOKEN_BYTES * num_tokens,
            host_read_bps=10**12,
            remote_read_bps=10**12,
            storage_read_bps=storage_bps,
        ),
        rank_bytes=lambda num_tokens: (num_tokens, 3 * num_tokens),
        directory_lag_ns=10,
        fetch_mode=fetch_mode,
        fetch_deadline_ns=40,
        hands_back=True,
    )


def config(
    fetch_mode: FetchMode,
    reservation: Reservation,
    handoff: HandoffMode,
    *,
    num_decode: int = 2,
    hbm_blocks: int = 0,
) -> CoordinatorConfig:
    num_workers = 5
    return CoordinatorConfig(
        worker_gpus=tuple((2 * worker, 2 * worker + 1) for worker in range(num_workers)),
        num_decode=num_decode,
        block_size=SCHEDULER.block_size,
        hash_block_tokens=HASH_TOKENS,
        max_model_len=SCHEDULER.max_model_len,
        rank_bytes=rank_bytes,
        rank_pairs=RANK_PAIRS,
        handoff_deadline_ns=25,
        reservation=reservation,
        handoff=handoff,
        num_layer_groups=3,
        on_expiry=OnExpiry.RECOMPUTE,
        max_restarts=1,
        pool=pool_config(
            fetch_mode,
            num_workers=num_workers,
            hbm_blocks=hbm_blocks,
            storage_bps=10**13 if reservation is Reservation.DECODE_FIRST else 10**9,
        ),
    )


def assert_record(record: RequestRecord, cluster: PooledFaultyCluster) -> None:
    """INV-3 for the record with its fetch."""
    assert record.outcome not in {Outcome.UNFINISHED, Outcome.REJECTED}
    instants = [
        record.arrival_ns,
        record.routed_ns,
        record.prefill_start_ns,
        record.prefill_end_ns,
        record.transferred_ns,
        record.first_token_ns,
        record.finished_ns,
    ]
    known = [instant for instant in instants if instant is not None]
    assert known == sorted(known)
    if record.fetched_ns is not None and record.prefill_end_ns is not None:
        assert record.routed_ns is not None
        assert record.routed_ns <= record.fetched_ns <= record.prefill_end_ns
        assert 0 < record.num_fetched_tokens <= record.num_cached_tokens
    if record.outcome is Outcome.FINISHED:
        expected = min(cluster.output_lengths[record.request_id], MAX_TOKENS)
        assert record.num_output_tokens == expected


def run(cluster: PooledFaultyCluster, num_steps: int) -> None:
    """Let so many things happen and then everything end; nothing may be lost (INV-1, INV-4)."""
    for _ in range(num_steps):
        cluster.step()
        cluster.check()
    cluster.drain()
    cluster.check()
    assert sorted(cluster.records) == list(range(len(cluster.prompts)))
    for record in cluster.records.values():
        assert_record(record, cluster)
    assert cluster.num_held_blocks == 0
    assert not cluster.moving
    assert not cluster.fetching
    counts = cluster.coordinator.pool_counts
    fetched = counts.host_bytes + counts.remote_bytes + counts.storage_bytes
    assert fetched <= cluster.fetched_bytes
    tokens = counts.host_tokens + counts.remote_tokens + counts.storage_tokens
    assert fetched == TOKEN_BYTES * tokens


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(part.value for part in mode))
def test_nothing_is_lost_in_thousands_of_events(
    mode: tuple[FetchMode, Reservation, HandoffMode],
) -> None:
    cluster = PooledFaultyCluster(config(*mode), seed=MODES.index(mode))
    run(cluster, 3000)
    # the run is worth something only if all of it came up
    counts = cluster.coordinator.pool_counts
    is_storage_fast = mode[1] is Reservation.DECODE_FIRST
    far_tokens = counts.storage_tokens if is_storage_fast else counts.remote_tokens
    assert min(counts.host_tokens, far_tokens) > 0
    assert min(counts.num_fetch_fallbacks, cluster.num_cancelled) > 3
    assert cluster.num_deaths > 10


class StripedFaultyCluster(PooledFaultyCluster):
    """Counts the fetches from several servers at once."""

    def check(self) -> None:
        super().check()
        fetches = self.coordinator._fetches
        assert fetches is not None
        for fetch in fetches._by_request.values():
            if len({part.source for part in fetch.moving.values() if part.source >= 0}) > 1:
                self.striped.add(fetch.request_id)

    def __init__(self, config: CoordinatorConfig, seed: int) -> None:
        super().__init__(config, seed)
        self.striped: set[int] = set()


@pytest.mark.parametrize("fetch_mode", list(FetchMode))
@pytest.mark.parametrize("handoff", list(HandoffMode))
def test_nothing_is_lost_in_stripes(fetch_mode: FetchMode, handoff: HandoffMode) -> None:
    """The same laws, above all that what was fetched is what was found, token by token."""
    settings = config(fetch_mode, Reservation.PREFILL_FIRST, handoff, num_decode=1)
    assert settings.pool is not None
    pool = replace(
        settings.pool,
        worker_servers=(0, 1, 2, 3, 4),  # or else there would be no two others to fetch from
        server_gpus=settings.worker_gpus,
        host=TierSpec(capacity_blocks=24, read_bps=1),
        placement=replace(settings.pool.placement, max_stripes=3, storage_read_bps=10**9),
    )
    settings = replace(settings, pool=pool)
    cluster = StripedFaultyCluster(settings, seed=40)
    run(cluster, 2500)
    counts = cluster.coordinator.pool_counts
    assert len(cluster.striped) > 3
    assert min(counts.remote_tokens, counts.num_fetch_fallbacks, cluster.num_cancelled) > 3


@pytest.mark.parametrize("fetch_mode", list(FetchMode))
def test_nothing_is_lost_by_aggregated_workers(fetch_mode: FetchMode) -> None:
    settings = config(
        fetch_mode,
        Reservation.PREFILL_FIRST,
        HandoffMode.WHOLE_PROMPT,
        num_decode=0,
        hbm_blocks=17,
    )
    pool = settings.pool
    assert pool is not None
    placement = replace(pool.placement, policy=PlacementPolicy.POOL_PREFIX, min_gain_ns=-(10**6))
    settings = replace(settings, pool=replace(pool, placement=placement))
    run(PooledFaultyCluster(settings, seed=1), 3000)
