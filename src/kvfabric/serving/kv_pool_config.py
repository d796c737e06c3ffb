"""Settings of the prefixes that a cluster keeps outside HBM."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import TierSpec, WritePolicy
from kvfabric.serving.prefix_placement import PlacementConfig


class FetchMode(Enum):
    """When the rest of a prompt is computed behind a prefix that is fetched."""

    BEFORE = "before"  # once all of the prefix is there
    LAYER_WISE = "layer_wise"  # at once; its first step does not end before the prefix is there


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPoolConfig:
    """The pool of a cluster. A block is what one content hash of the workload names.

    A server is dead while all its workers are: its host memory is lost with the last of them.

    Attributes:
        worker_servers: the server of each worker, decode workers last; for a worker that spans
            several, its first.
        server_gpus: fabric GPU indices of each server, whose NICs send what its memory holds.
        hbm_blocks: blocks that a worker's HBM is taken to keep, as workers do not report what they
            drop. Too many, and prompts placed for hits in HBM that are gone are computed, although
            host memory has them; 0, and what is in HBM after all is found when blocks are reserved.
        host: the host memory of each server, and the rate at which all its workers together read
            it.
        storage: the storage tier, if there is one.
        storage_gpus: fabric endpoints that send what storage holds; () reads storage at its rate
            without using the fabric.
        policy: when blocks are written to the tier below.
        placement: how workers and fetches are chosen; its ``block_tokens`` are those of a hash.
        rank_bytes: KV bytes of so many tokens on each rank of a prefill worker; they must not
            shrink when tokens are added.
        rank_bytes_in_turn: ``rank_bytes`` of one fetch of a worker after the other, over and over,
            where ranks take turns at receiving; () by default. All give the same bytes in all.
        directory_lag_ns: time until the control sees a change of a tier.
        fetch_mode: when the rest is computed.
        fetch_deadline_ns: time from the start of a fetch until it is given up; None: never.
        hands_back: decode writes the blocks it computed to the host memory of its server.
    """

    worker_servers: tuple[int, ...]
    server_gpus: tuple[tuple[int, ...], ...]
    hbm_blocks: int
    host: TierSpec
    storage: TierSpec | None = None
    storage_gpus: tuple[int, ...] = ()
    policy: WritePolicy = WritePolicy.THROUGH
    placement: PlacementConfig
    rank_bytes: Callable[[int], Sequence[int]]
    rank_bytes_in_turn: tuple[Callable[[int], Sequence[int]], ...] = ()
    directory_lag_ns: int = 0
    fetch_mode: FetchMode = FetchMode.BEFORE
    fetch_deadline_ns: int | None = None
    hands_back: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers out of range and servers without GPUs."""
        for name, least in (("hbm_blocks", 0), ("directory_lag_ns", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint=f"Write {least} or more")
        if self.fetch_deadline_ns is not None and self.fetch_deadline_ns < 1:
            raise ConfigError(
                f"fetch_deadline_ns is {self.fetch_deadline_ns}",
                hint="Write 1 or more, or leave it out",
            )
        if not self.server_gpus or not all(self.server_gpus):
            raise ConfigError(
                "a server of the KV pool has no GPU",
                hint="Write the fabric GPU indices of every server",
            )
        if self.storage is None and self.placement.storage_read_bps is not None:
            raise ConfigError(
                "placement.storage_read_bps without a storage tier",
                hint="Describe the storage tier, or leave its rate out of the placement",
            )

    @property
    def num_servers(self) -> int:
        """Return the servers with host memory."""
        return len(self.server_gpus)
