"""Prefixes kept outside HBM: what a plan says of them, and the settings of the control."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.kvcache.resharding import RankBytes
from kvfabric.kvcache.tiers import TierSpec, WritePolicy
from kvfabric.perf.handoff import HANDOFF_SETUP_NS, payload_rate_bps
from kvfabric.plan.worker_layout import SERVER_GPUS
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepShape
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.kv_pool import PoolCounts
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_placement import PlacementConfig, PlacementPolicy
from kvfabric.units import NS_PER_S, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRequest:
    """One memory tier: bytes that it holds, and bytes/s at which they are read."""

    capacity_bytes: int
    read_bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Prefixes outside HBM; see ``KvPoolConfig``.

    Attributes:
        host: the host memory of each server.
        storage: one tier for all servers, read without using the fabric; None: there is none.
        placement: what counts when a worker is chosen.
        fetch_mode: when the rest of a prompt is computed behind a fetched prefix.
        write_policy: when blocks are written to the tier below.
        hands_back: decode writes the blocks it computed to host memory.
        lag_ns: time until the control sees a change of a tier.
        fetch_stripes: most servers that one prefix is fetched from at once.
    """

    host: TierRequest
    storage: TierRequest | None = None
    placement: PlacementPolicy = PlacementPolicy.POOL_PREFIX
    fetch_mode: FetchMode = FetchMode.BEFORE
    write_policy: WritePolicy = WritePolicy.THROUGH
    hands_back: bool = False
    lag_ns: int = 0
    fetch_stripes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSurroundings:
    """What a pool needs to know of its cluster.

    Attributes:
        worker_gpus: fabric GPU indices of each worker.
        scheduler: limits of a prefill worker.
        model: step times of a prefill worker.
        rank_bytes: KV bytes of so many tokens on each of its ranks.
        rank_bytes_in_turn: of one fetch after the other, where ranks take turns at receiving.
        is_uneven: one rank receives what all of them hold.
        hash_block_tokens: tokens per content hash of the workload.
        num_layers: of the model.
        nic_rate_bps: of a GPU; None: no fabric, and no fetch from another server.
    """

    worker_gpus: Sequence[tuple[int, ...]]
    scheduler: SchedulerConfig
    model: StepTimeModel
    rank_bytes: RankBytes
    hash_block_tokens: int
    num_layers: int
    nic_rate_bps: int | None
    rank_bytes_in_turn: tuple[RankBytes, ...] = ()
    is_uneven: bool = False


def pool_config(pool: PoolRequest, cluster: PoolSurroundings) -> KvPoolConfig:
    """Return the settings of the control's KV pool.

    Raises:
        ConfigError: a tier too small for a block.
    """
    block_tokens, rank_bytes = cluster.hash_block_tokens, cluster.rank_bytes
    block_bytes = sum(rank_bytes(block_tokens))
    host = _tier(pool.host, block_bytes, "host")
    storage = None if pool.storage is None else _tier(pool.storage, block_bytes, "storage")
    num_gpus = max(max(gpus) for gpus in cluster.worker_gpus) + 1
    scheduler = cluster.scheduler
    hbm_tokens = (scheduler.num_blocks - 1) * scheduler.block_size
    return KvPoolConfig(
        worker_servers=tuple(gpus[0] // SERVER_GPUS for gpus in cluster.worker_gpus),
        server_gpus=tuple(_server_gpus(num_gpus)),
        hbm_blocks=hbm_tokens // block_tokens if scheduler.enable_prefix_caching else 0,
        host=host,
        storage=storage,
        policy=pool.write_policy,
        placement=_placement(pool, cluster, host, storage),
        rank_bytes=rank_bytes,
        rank_bytes_in_turn=cluster.rank_bytes_in_turn,
        directory_lag_ns=pool.lag_ns,
        fetch_mode=pool.fetch_mode,
        hands_back=pool.hands_back,
    )


def _tier(tier: TierRequest, block_bytes: int, name: str) -> TierSpec:
    """Return a tier; writes are not timed, so that their rate does not matter."""
    if tier.capacity_bytes < block_bytes:
        raise ConfigError(
            f"{tier.capacity_bytes:,} bytes hold no block of {block_bytes:,} bytes",
            where=f"kv_pool.{name}.capacity",
            hint="Write the size of one block or more",
        )
    rate_bps = tier.read_bytes_per_s * 8
    return TierSpec.of_bytes(tier.capacity_bytes, block_bytes, read_bps=rate_bps)


def _server_gpus(num_gpus: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, num_gpus, SERVER_GPUS):
        yield tuple(range(first, min(first + SERVER_GPUS, num_gpus)))


def _placement(
    pool: PoolRequest, cluster: PoolSurroundings, host: TierSpec, storage: TierSpec | None
) -> PlacementConfig:
    prefill_ns = prompt_time(cluster.model, cluster.scheduler.max_num_batched_tokens)
    budget = cluster.scheduler.max_num_batched_tokens
    remote_bps = nics_bps = None
    if cluster.nic_rate_bps is not None:
        nics_bps = _receive_bps(cluster, payload_rate_bps(cluster.nic_rate_bps))
        remote_bps = min(host.read_bps, nics_bps)
    is_layer_wise = pool.fetch_mode is FetchMode.LAYER_WISE
    return PlacementConfig(
        policy=pool.placement,
        block_tokens=cluster.hash_block_tokens,
        queue_tokens_per_s=max(1, budget * NS_PER_S // prefill_ns(budget, 0)),
        prefill_ns=prefill_ns,
        kv_bytes=lambda num_tokens: sum(cluster.rank_bytes(num_tokens)),
        host_read_bps=host.read_bps,
        remote_read_bps=remote_bps,
        max_stripes=pool.fetch_stripes,
        receive_bps=nics_bps,
        storage_read_bps=None if storage is None else storage.read_bps,
        fetch_setup_ns=HANDOFF_SETUP_NS,
        num_layers=cluster.num_layers if is_layer_wise else 1,
    )


def _receive_bps(cluster: PoolSurroundings, nic_bps: int) -> int:
    """Return the rate at which a worker's NICs take a prefix; that of the busiest decides."""
    if not cluster.is_uneven:
        return nic_bps * len(cluster.worker_gpus[0])
    sizes = cluster.rank_bytes(cluster.hash_block_tokens)
    return nic_bps * sum(sizes) // max(sizes)


def prompt_time(model: StepTimeModel, budget: int) -> Callable[[int, int], int]:
    """Return the time to compute so many tokens behind so many, alone, in steps of a budget."""

    def prefill_ns(num_tokens: int, history: int) -> int:
        total_ns = 0
        while num_tokens > 0:
            chunk = min(num_tokens, budget)
            total_ns += model.mixed_step_ns(StepShape(0, 0, ((chunk, history),)))
            num_tokens -= chunk
            history += chunk
        return max(1, total_ns)

    return prefill_ns


def found_in_words(counts: PoolCounts) -> str:
    """Return which share of the prompt tokens was found where, and what was moved for it."""
    total = counts.num_prompt_tokens or 1
    places = (
        ("HBM", counts.hbm_tokens),
        ("own host", counts.host_tokens),
        ("other hosts", counts.remote_tokens),
        ("storage", counts.storage_tokens),
    )
    shares = ", ".join(f"{name} {num_tokens / total:.1%}" for name, num_tokens in places)
    moved = (
        f"{format_bytes(counts.host_bytes)} read from own hosts,"
        f" {format_bytes(counts.remote_bytes)} fetched over the fabric,"
        f" {format_bytes(counts.storage_bytes)} from storage in {counts.num_fetches:,} fetches,"
        f" {counts.num_fetch_fallbacks:,} of them given up"
    )
    back = ""
    if counts.num_handed_back_tokens:
        back = f"; decode handed back {format_bytes(counts.handed_back_bytes)}"
    return f"{float(counts.hit_rate):.1%} of the prompt tokens found ({shares}); {moved}{back}"
