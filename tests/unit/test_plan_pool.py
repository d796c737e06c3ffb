"""A KV pool in a plan: its sizes worked by hand, its runs, and what it is left out of.

Llama-3.1-8B caches 131,072 bytes per token; a block of 64 tokens has 8,388,608 bytes.
"""

from dataclasses import replace

import pytest
from clusters import LinearModel
from plan_requests import BYTES_PER_TOKEN, GBIT, HASH_TOKENS, plan_request, simulation_on

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import WritePolicy
from kvfabric.plan.compare import build_fabric, design_on
from kvfabric.plan.fleet import build_cluster, build_fleet
from kvfabric.plan.pool import (
    PoolRequest,
    PoolSurroundings,
    TierRequest,
    found_in_words,
    pool_config,
    prompt_time,
)
from kvfabric.plan.request import PlanRequest, WorkerRequest, check_fleet
from kvfabric.protocol.record import Outcome
from kvfabric.protocol.step import StepShape
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.kv_pool import PoolCounts
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_placement import PlacementPolicy

GB = 10**9
HOST = TierRequest(capacity_bytes=1000 * GB, read_bytes_per_s=50 * GB)
POOL = PoolRequest(host=HOST)


def with_pool(pool: PoolRequest = POOL, **workers: object) -> PlanRequest:
    settings: dict[str, object] = {"num_prefill": 2, "num_decode": 2, "tp": 4} | workers
    request = plan_request(workers=WorkerRequest(**settings))  # type: ignore[arg-type]
    return replace(request, kv_pool=pool)


def counts_of(request: PlanRequest, *, is_disaggregated: bool = True) -> PoolCounts:
    fabric = build_fabric(request, request.network.fabrics[0])
    network = design_on(request, fabric, "assigned").network
    check_fleet(request)
    cluster = build_cluster(
        request, build_fleet(request), network, is_disaggregated=is_disaggregated
    )
    records = cluster.simulation.run(check=True).records
    assert {record.outcome for record in records} == {Outcome.FINISHED}
    counts = cluster.coordinator.pool_counts
    assert counts.num_prompt_tokens == sum(record.num_prompt_tokens for record in records)
    assert counts.hit_tokens == sum(record.num_cached_tokens for record in records)
    return counts


# ---------------------------------------------------------------------------- settings


def surroundings(nic_rate_bps: int | None = 400 * GBIT) -> PoolSurroundings:
    return PoolSurroundings(
        worker_gpus=[(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)],
        scheduler=SchedulerConfig(
            num_blocks=1001,
            block_size=16,
            max_num_seqs=8,
            max_num_batched_tokens=1000,
            max_model_len=9000,
        ),
        model=LinearModel(),
        rank_bytes=lambda num_tokens: (num_tokens * BYTES_PER_TOKEN // 4,) * 4,
        hash_block_tokens=HASH_TOKENS,
        num_layers=32,
        nic_rate_bps=nic_rate_bps,
    )


def config_of(nic_rate_bps: int | None = 400 * GBIT, **pool: object) -> KvPoolConfig:
    return pool_config(replace(POOL, **pool), surroundings(nic_rate_bps))  # type: ignore[arg-type]


def test_tiers_hold_whole_blocks_of_all_ranks() -> None:
    storage = TierRequest(capacity_bytes=8_388_608 * 7 + 1, read_bytes_per_s=GB)
    config = config_of(storage=storage)
    assert config.host.capacity_blocks == 119_209  # 10^12 / 8,388,608
    assert config.host.read_bps == 400 * GBIT
    assert config.storage is not None
    assert config.storage.capacity_blocks == 7
    assert config.placement.storage_read_bps == 8 * GBIT


def test_workers_read_the_memory_of_their_server() -> None:
    config = config_of()
    assert config.worker_servers == (0, 0, 1)
    assert config.server_gpus == (tuple(range(8)), (8, 9, 10, 11))
    assert config.hbm_blocks == 1000 * 16 // HASH_TOKENS


@pytest.mark.parametrize(
    ("nic_rate_bps", "remote_bps"),
    [
        (400 * GBIT, 400 * GBIT),  # the host's 50 GB/s
        (65 * GBIT, 4 * 64 * GBIT),  # four NICs, 4,096 bytes of payload in 4,160
        (None, None),
    ],
)
def test_other_servers_are_read_at_the_slower_of_memory_and_nics(
    nic_rate_bps: int | None, remote_bps: int | None
) -> None:
    assert config_of(nic_rate_bps).placement.remote_read_bps == remote_bps


def test_layers_overlap_only_in_a_layer_wise_fetch() -> None:
    assert config_of().placement.num_layers == 1
    assert config_of(fetch_mode=FetchMode.LAYER_WISE).placement.num_layers == 32


def test_prompt_takes_its_chunks_each_behind_the_last() -> None:
    model, shapes = LinearModel(), [((1000, 50),), ((1000, 1050),), ((500, 2050),)]
    expected_ns = sum(model.mixed_step_ns(StepShape(0, 0, shape)) for shape in shapes)
    assert prompt_time(model, 1000)(2500, 50) == expected_ns


@pytest.mark.parametrize("tier", ["host", "storage"])
def test_tier_without_room_for_a_block_is_refused(tier: str) -> None:
    small = TierRequest(capacity_bytes=8_388_607, read_bytes_per_s=GB)
    with pytest.raises(ConfigError, match=rf"kv_pool\.{tier}\.capacity: 8,388,607 bytes hold no"):
        config_of(400 * GBIT, **{tier: small})


# ---------------------------------------------------------------------------- runs


@pytest.mark.parametrize("policy", PlacementPolicy)
@pytest.mark.parametrize("fetch_mode", FetchMode)
@pytest.mark.parametrize("write_policy", WritePolicy)
def test_every_pool_serves_the_load_and_counts_every_hit(
    policy: PlacementPolicy, fetch_mode: FetchMode, write_policy: WritePolicy
) -> None:
    pool = replace(POOL, placement=policy, fetch_mode=fetch_mode, write_policy=write_policy)
    counts = counts_of(with_pool(pool))
    assert counts.hit_tokens > 0


@pytest.mark.parametrize("is_disaggregated", [False, True])
@pytest.mark.parametrize("workers", [{"decode_tp": 2, "num_decode": 4}, {"prefill_cp": 4}])
def test_prefixes_are_fetched_by_unlike_workers(
    workers: dict[str, object], *, is_disaggregated: bool
) -> None:
    fast = replace(POOL, host=replace(HOST, read_bytes_per_s=1000 * GB))
    request = with_pool(fast, **{"enable_prefix_caching": False} | workers)
    counts = counts_of(request, is_disaggregated=is_disaggregated)
    assert counts.hbm_tokens == 0
    assert counts.hit_tokens > 0
    assert counts.host_bytes == counts.host_tokens * BYTES_PER_TOKEN
    assert counts.remote_bytes == counts.remote_tokens * BYTES_PER_TOKEN
    if not is_disaggregated:
        assert counts.remote_bytes == 0  # that fleet is compared without a fabric


def test_workers_that_do_both_fetch_over_the_fabric_if_there_is_one() -> None:
    request = with_pool(num_prefill=4, num_decode=0, enable_prefix_caching=False, tp=8)
    pool = replace(POOL, placement=PlacementPolicy.LEAST_LOADED)
    counts = counts_of(replace(request, kv_pool=pool), is_disaggregated=False)
    assert counts.remote_bytes == counts.remote_tokens * BYTES_PER_TOKEN > 0


def test_pool_of_a_load_without_hashes_is_left_out() -> None:
    request = with_pool()
    specs = tuple(replace(spec, block_hashes=()) for spec in request.workload.requests)
    bare = replace(request, workload=replace(request.workload, requests=specs, hash_block_tokens=0))
    assert any("nothing can be reused" in note for note in build_fleet(bare).notes)
    pooled, _ = simulation_on(bare, "roft", "assigned")
    plain, _ = simulation_on(replace(bare, kv_pool=None), "roft", "assigned")
    assert pooled.run() == plain.run()


def test_words_tell_where_tokens_were_found() -> None:
    counts = PoolCounts(
        num_prompt_tokens=1000,
        hbm_tokens=100,
        host_tokens=50,
        remote_tokens=200,
        storage_tokens=25,
        host_bytes=5 * GB,
        num_fetches=1234,
    )
    text = found_in_words(counts)
    assert text.startswith(
        "37.5% of the prompt tokens found (HBM 10.0%, own host 5.0%, other hosts 20.0%, storage"
    )
    assert "5 GB read from own hosts" in text
    assert "in 1,234 fetches, 0 of them given up" in text
    assert "handed back 2 GB" in found_in_words(
        replace(counts, num_handed_back_tokens=9, handed_back_bytes=2 * GB)
    )
