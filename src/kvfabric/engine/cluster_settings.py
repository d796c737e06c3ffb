"""What a running cluster is made of, and the control for it."""

from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import (
    CoordinatorConfig,
    HandoffMode,
    OnExpiry,
    Reservation,
)
from kvfabric.serving.router import SIGNAL_INTERVAL_NS, Router, RoutingPolicy
from kvfabric.serving.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Workers and limits; the names are those of ``serving``.

    Attributes:
        num_prefill: workers that compute prompts, and without ``num_decode`` also generate.
        num_decode: workers that only generate, from KV cache they receive.
        num_blocks: KV blocks of each worker, the null block included.
        block_size: tokens per block.
        max_model_len: most tokens of one request, prompt and output.
        max_num_seqs: most requests in a step.
        max_num_batched_tokens: most tokens in a step.
        enable_prefix_caching: find full blocks again by prefix.
        policy: how a worker is chosen for a prompt.
        signal_interval_ns: how old the router's view of the workers may get.
        reservation: when decode blocks are reserved.
        handoff: when KV cache moves.
        num_layer_groups: in how many parts the layers of a chunk move, layer-wise; no more than the
            model has layers.
        handoff_deadline_ns: time from the end of a prefill until its hand-off is given up.
        on_expiry: what then becomes of the request.
        kv_transport: how KV blocks move, see ``transport.choose``.
        max_restarts: how often a request may start anew because its worker died.
    """

    num_prefill: int = 1
    num_decode: int = 0
    num_blocks: int
    block_size: int = 16
    max_model_len: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    policy: RoutingPolicy = RoutingPolicy.PREFIX_AWARE
    signal_interval_ns: int = SIGNAL_INTERVAL_NS
    reservation: Reservation = Reservation.PREFILL_FIRST
    handoff: HandoffMode = HandoffMode.WHOLE_PROMPT
    num_layer_groups: int = 1
    handoff_deadline_ns: int = 30_000_000_000
    on_expiry: OnExpiry = OnExpiry.RECOMPUTE
    max_restarts: int = 1
    kv_transport: str = "sockets"

    def __post_init__(self) -> None:
        """Refuse counts that make no cluster."""
        for name, least in (("num_prefill", 1), ("num_decode", 0), ("num_layer_groups", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint=f"Write {least} or more")

    @property
    def num_workers(self) -> int:
        """Return all workers; those that compute prompts have the first ids."""
        return self.num_prefill + self.num_decode


def handoff_mode(text: str) -> HandoffMode:
    """Return the hand-off that a command line names: whole-prompt or layer-wise."""
    return HandoffMode(text.replace("-", "_"))


def schedulers_of(settings: ClusterSettings) -> list[Scheduler]:
    """Return a scheduler per worker, by id."""
    config = SchedulerConfig(
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        enable_prefix_caching=settings.enable_prefix_caching,
    )
    return [Scheduler(config) for _ in range(settings.num_workers)]


def coordinator_of(
    settings: ClusterSettings, block_bytes: int, num_layers: int = 1 << 10
) -> Coordinator:
    """Return the control; a worker's only GPU has the worker's id.

    It counts the bytes of a hand-off by token; what moves is whole blocks.

    Args:
        settings: of the cluster.
        block_bytes: KV bytes of one block, all layers.
        num_layers: of the KV cache.
    """
    assert block_bytes >= settings.block_size, "less than a byte per token"

    def rank_bytes(num_tokens: int) -> tuple[int, ...]:
        return (num_tokens * block_bytes // settings.block_size,)

    config = CoordinatorConfig(
        worker_gpus=tuple((worker,) for worker in range(settings.num_workers)),
        num_decode=settings.num_decode,
        block_size=settings.block_size,
        hash_block_tokens=settings.block_size,
        max_model_len=settings.max_model_len,
        rank_bytes=rank_bytes,
        handoff_deadline_ns=settings.handoff_deadline_ns,
        reservation=settings.reservation,
        handoff=settings.handoff,
        num_layer_groups=min(settings.num_layer_groups, num_layers),
        on_expiry=settings.on_expiry,
        max_restarts=settings.max_restarts,
    )
    router = Router(
        settings.policy,
        num_prefill=settings.num_prefill,
        num_decode=settings.num_decode,
        signal_interval_ns=settings.signal_interval_ns,
    )
    return Coordinator(config, router)
