"""Settings of the cluster's control."""

from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import ConfigError
from kvfabric.kvcache.resharding import RankBytes
from kvfabric.serving.kv_pool_config import KvPoolConfig


class Reservation(Enum):
    """When a decode worker is asked for the blocks of the whole prompt."""

    PREFILL_FIRST = "prefill_first"  # when the prefill ends; if KV is streamed, when it starts
    DECODE_FIRST = "decode_first"  # on arrival; prefill gets the request once they are reserved


class HandoffMode(Enum):
    """When KV cache moves from prefill to decode."""

    WHOLE_PROMPT = "whole_prompt"  # all of it after the prefill
    LAYER_WISE = "layer_wise"  # each layer group of a chunk as soon as it is computed


class OnExpiry(Enum):
    """What becomes of a request whose hand-off passed its deadline."""

    FAIL = "fail"  # it is aborted
    RECOMPUTE = "recompute"  # the decode worker computes the prompt itself


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """What the control needs to know of the cluster.

    Attributes:
        worker_gpus: fabric GPU indices of each worker, in rank order.
        num_decode: the last so many workers only decode; 0 means all are aggregated.
        block_size: tokens per KV block.
        hash_block_tokens: tokens per content hash of the workload, 0 without hashes.
        max_model_len: most tokens of one request.
        rank_bytes: KV bytes for a prompt of so many tokens, of each of ``rank_pairs``; they must
            not shrink when the prompt grows. ``KvResharding`` gives both.
        rank_pairs: ``(source rank, destination rank)``; by default rank r sends to rank r.
        rank_bytes_in_turn: ``rank_bytes`` of one hand-off of a source worker after the other, over
            and over, where ranks take turns at sending; () by default: ``rank_bytes`` of all. All
            must give the same bytes in all.
        handoff_deadline_ns: time from the end of prefill until a hand-off is given up.
        reservation: when decode blocks are reserved.
        handoff: when KV cache moves.
        num_layer_groups: groups in which layers are streamed, of equal size; layer-wise only.
        on_expiry: what becomes of a request whose hand-off was given up.
        max_restarts: how often a request may start anew because its worker died.
        pool: prefixes kept outside HBM, and placement by them; None: the router's policy and HBM
            alone.
    """

    worker_gpus: tuple[tuple[int, ...], ...]
    num_decode: int
    block_size: int
    hash_block_tokens: int
    max_model_len: int
    rank_bytes: RankBytes
    rank_pairs: tuple[tuple[int, int], ...] | None = None
    rank_bytes_in_turn: tuple[RankBytes, ...] = ()
    handoff_deadline_ns: int
    reservation: Reservation = Reservation.PREFILL_FIRST
    handoff: HandoffMode = HandoffMode.WHOLE_PROMPT
    num_layer_groups: int = 1
    on_expiry: OnExpiry = OnExpiry.FAIL
    max_restarts: int = 1
    pool: KvPoolConfig | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        for name, least in (("num_layer_groups", 1), ("max_restarts", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint=f"Write {least} or more")

    @property
    def num_prefill(self) -> int:
        """Return the workers that compute prompts."""
        return len(self.worker_gpus) - self.num_decode
