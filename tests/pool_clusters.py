"""Small clusters with a KV pool, for tests of placement, fetches and hand-back."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusters import (
    GPUS_PER_WORKER,
    Cluster,
    ConstantNetwork,
    LinearModel,
    rank_bytes,
    scheduler_config,
)

from kvfabric.kvcache.tier_links import TierLinks
from kvfabric.kvcache.tiers import TierSpec, WritePolicy
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.workload import Workload
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_placement import PlacementConfig, PlacementPolicy
from kvfabric.serving.router import Router
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig

GBIT = 10**9


@dataclass(frozen=True, kw_only=True)
class PoolCluster:
    """Settings of a pool; every ``workers_per_server`` workers in a row share a server.

    Rates make a token of the linear model's cluster (6 bytes, 7 ns to compute) take 1 ns from the
    own host, 2 ns from another server, 3 ns from storage.
    """

    cluster: Cluster
    workers_per_server: int = 1
    host_blocks: int = 1 << 20
    storage_blocks: int = 0
    host_bps: int = 48 * GBIT
    remote_bps: int | None = 24 * GBIT
    storage_bps: int = 16 * GBIT
    write: WritePolicy = WritePolicy.THROUGH
    policy: PlacementPolicy = PlacementPolicy.POOL_PREFIX
    min_gain_ns: int = 0
    lag_ns: int = 0
    fetch_mode: FetchMode = FetchMode.BEFORE
    fetch_deadline_ns: int | None = None
    hands_back: bool = False


def linear_prefill_ns(num_tokens: int, history: int) -> int:
    return 1000 + 7 * num_tokens + (num_tokens + history) // 16


def total_bytes(num_tokens: int) -> int:
    return sum(rank_bytes(num_tokens))


def pool_config(pool: PoolCluster) -> KvPoolConfig:
    cluster = pool.cluster
    num_workers = cluster.num_prefill + cluster.num_decode
    num_servers = -(-num_workers // pool.workers_per_server)
    gpus_per_server = GPUS_PER_WORKER * pool.workers_per_server
    storage = None
    if pool.storage_blocks:
        storage = TierSpec(
            capacity_blocks=pool.storage_blocks,
            read_bps=pool.storage_bps,
        )
    hbm_tokens = (cluster.num_blocks - 1) * cluster.block_size
    return KvPoolConfig(
        worker_servers=tuple(w // pool.workers_per_server for w in range(num_workers)),
        server_gpus=tuple(
            tuple(range(s * gpus_per_server, (s + 1) * gpus_per_server)) for s in range(num_servers)
        ),
        hbm_blocks=hbm_tokens // cluster.hash_block_tokens if cluster.prefix_caching else 0,
        host=TierSpec(capacity_blocks=pool.host_blocks, read_bps=pool.host_bps),
        storage=storage,
        policy=pool.write,
        placement=PlacementConfig(
            policy=pool.policy,
            block_tokens=cluster.hash_block_tokens,
            queue_tokens_per_s=140_000_000,
            prefill_ns=linear_prefill_ns,
            kv_bytes=total_bytes,
            host_read_bps=pool.host_bps,
            remote_read_bps=pool.remote_bps,
            storage_read_bps=pool.storage_bps if storage else None,
            min_gain_ns=pool.min_gain_ns,
        ),
        rank_bytes=rank_bytes,
        directory_lag_ns=pool.lag_ns,
        fetch_mode=pool.fetch_mode,
        fetch_deadline_ns=pool.fetch_deadline_ns,
        hands_back=pool.hands_back,
    )


def coordinator_config(cluster: Cluster, pool: KvPoolConfig | None) -> CoordinatorConfig:
    num_workers = cluster.num_prefill + cluster.num_decode
    return CoordinatorConfig(
        worker_gpus=tuple(
            tuple(range(w * GPUS_PER_WORKER, (w + 1) * GPUS_PER_WORKER)) for w in range(num_workers)
        ),
        num_decode=cluster.num_decode,
        block_size=cluster.block_size,
        hash_block_tokens=cluster.hash_block_tokens,
        max_model_len=cluster.max_model_len,
        rank_bytes=rank_bytes,
        handoff_deadline_ns=cluster.handoff_deadline_ns,
        reservation=cluster.reservation,
        handoff=cluster.handoff,
        num_layer_groups=cluster.num_layer_groups,
        on_expiry=cluster.on_expiry,
        max_restarts=cluster.max_restarts,
        pool=pool,
    )


def build_pooled(
    pool: PoolCluster,
    workload: Workload,
    network: ConstantNetwork,
    *,
    model: StepTimeModel | None = None,
    has_pool: bool = True,
    max_stripes: int = 1,
) -> tuple[Simulation, Coordinator]:
    """Return a simulation that has not run yet, and its control."""
    cluster = pool.cluster
    config = pool_config(pool) if has_pool else None
    if config is not None:
        placement = replace(config.placement, max_stripes=max_stripes)
        config = replace(config, placement=placement)
    router = Router(
        cluster.policy,
        num_prefill=cluster.num_prefill,
        num_decode=cluster.num_decode,
        signal_interval_ns=cluster.signal_interval_ns,
    )
    coordinator = Coordinator(coordinator_config(cluster, config), router)
    lengths = {spec.request_id: spec.num_output_tokens for spec in workload.requests}
    workers = [
        (Scheduler(scheduler_config(cluster)), _executor(cluster, model, lengths, worker))
        for worker in range(cluster.num_prefill + cluster.num_decode)
    ]
    links = None
    if config is not None:
        links = TierLinks(config.num_servers, config.host, config.storage)
    simulation = Simulation(
        SimulationConfig(
            transfer_setup_ns=cluster.setup_ns,
            max_tokens=cluster.max_tokens,
            async_scheduling=cluster.async_scheduling,
        ),
        workload,
        coordinator,
        workers,
        network,
        tier_links=links,
    )
    return simulation, coordinator


def _executor(
    cluster: Cluster, model: StepTimeModel | None, lengths: Mapping[int, int], worker: int
) -> SimExecutor:
    return SimExecutor(
        LinearModel() if model is None else model,
        lengths,
        samples_first_token=not cluster.num_decode or worker >= cluster.num_prefill,
        max_iterations=cluster.max_iterations,
    )


def stepping(pool: PoolCluster) -> PoolCluster:
    """Return the same cluster, run one iteration at a time."""
    return replace(pool, cluster=replace(pool.cluster, max_iterations=1))
