"""The ``kv_pool:`` section of a scenario: prefixes kept outside HBM."""

from typing import Annotated, Literal

from pydantic import Field

from kvfabric.app.quantities import BytesPerS, PositiveNs, Section, SizeBytes
from kvfabric.kvcache.tiers import WritePolicy
from kvfabric.plan.pool import PoolRequest, TierRequest
from kvfabric.serving.kv_pool_config import FetchMode
from kvfabric.serving.prefix_placement import PlacementPolicy


class MemoryTier(Section):
    """What a tier holds and how fast it is read."""

    capacity: SizeBytes
    read: BytesPerS

    def build(self) -> TierRequest:
        """Return the tier as the plan takes it."""
        return TierRequest(capacity_bytes=self.capacity, read_bytes_per_s=self.read)


class KvPoolSettings(Section):
    """Prefixes in the host memory of every server and on storage, and when they are used."""

    host: MemoryTier
    storage: MemoryTier | None = None
    policy: Literal["least_loaded", "local_prefix", "pool_prefix"] = "pool_prefix"
    fetch: Literal["before", "layer_wise"] = "before"
    write: Literal["through", "on_eviction", "move"] = "through"
    hand_back: bool = False
    lag: PositiveNs | None = None
    fetch_stripes: Annotated[int, Field(ge=1, le=1024)] = 1

    def build(self) -> PoolRequest:
        """Return the pool as the plan takes it."""
        return PoolRequest(
            host=self.host.build(),
            storage=None if self.storage is None else self.storage.build(),
            placement=PlacementPolicy(self.policy),
            fetch_mode=FetchMode(self.fetch),
            write_policy=WritePolicy(self.write),
            hands_back=self.hand_back,
            lag_ns=self.lag or 0,
            fetch_stripes=self.fetch_stripes,
        )
