"""The scenario file as pydantic models; read once, turned into the packages' records, thrown away.

Defaults that decide results stand here, in one place, and are shown by ``--show``.
"""

from typing import Annotated, Literal

from pydantic import Field

from kvfabric.app.quantities import (
    DurationNs,
    GpuName,
    ModelName,
    PositiveNs,
    RateBps,
    Section,
)
from kvfabric.app.scenario_fabric import FabricKinds, Policies
from kvfabric.app.scenario_perf import Perf, RooflinePerf
from kvfabric.app.scenario_pfc import PfcSettings
from kvfabric.app.scenario_pool import KvPoolSettings
from kvfabric.app.scenario_prices import PricesOrFile
from kvfabric.app.scenario_search import SearchSettings
from kvfabric.app.scenario_workload import GeneratedWorkload, TraceWorkload

Count = Annotated[int, Field(ge=1)]


class Workers(Section):
    """The fleet; names as in vLLM."""

    prefill: Count
    decode: Annotated[int, Field(ge=0)]
    tp: Count = 8
    decode_tp: Count | None = None
    prefill_cp: Annotated[int, Field(ge=1, le=1024)] = 1
    cp_exchange: Literal["all_gather", "ring_pass_kv", "ring_pass_q", "all_to_all"] = "all_gather"
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: Count = 64
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 8192
    max_model_len: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    enable_prefix_caching: bool = True
    num_blocks: Annotated[int, Field(ge=2)] | None = None
    decode_num_blocks: Annotated[int, Field(ge=2)] | None = None
    async_scheduling: bool | None = None


class Fabric(Section):
    """The fabrics to compare and how traffic is spread over them."""

    nic_rate: RateBps
    switch: RateBps | None = None
    kinds: FabricKinds
    load_balancing: Annotated[Policies, Field(default_factory=lambda: ["ecmp", "assigned"])]
    queue_pairs: Annotated[int, Field(ge=1, le=128)] = 4  # as many as NCCL takes
    placement: Literal["split", "interleaved"] = "split"
    engine: Literal["max-min", "pfc", "pfc-stepped"] = "max-min"
    pfc: PfcSettings = PfcSettings()


class SloTargets(Section):
    """Latency targets of a request."""

    ttft: PositiveNs | None = None
    tpot: PositiveNs | None = None


class RouterSettings(Section):
    """How workers are chosen, and how old the router's view of them may be."""

    policy: Literal["round_robin", "least_loaded", "prefix_aware"] = "prefix_aware"
    signal_interval: PositiveNs = 50_000_000
    decode: Literal["least_loaded", "round_robin", "random", "topology_aware"] = "least_loaded"


class HandoffSettings(Section):
    """How KV cache gets from prefill to decode, and when that is given up."""

    mode: Literal["whole_prompt", "layer_wise"] = "whole_prompt"
    layer_groups: Annotated[int, Field(ge=1, le=1024)] = 8
    reserve: Literal["prefill_first", "decode_first"] = "prefill_first"
    deadline: PositiveNs = 60_000_000_000
    on_expiry: Literal["fail", "recompute"] = "fail"
    max_restarts: Annotated[int, Field(ge=0)] = 1
    senders: Literal["all", "first", "rotate"] = "all"


class Failure(Section):
    """A worker that dies, and when it is back."""

    worker: str
    at: DurationNs
    back_after: PositiveNs | None = None


class Scenario(Section):
    """Everything ``kvfabric plan`` and ``kvfabric simulate`` read."""

    schema_version: Literal[1]
    name: str
    model: ModelName
    gpu: GpuName | None = None
    users: Count | None = None
    context_tokens: Count | None = None
    workers: Workers
    fabric: Fabric | None = None
    workload: Annotated[GeneratedWorkload | TraceWorkload, Field(discriminator="kind")]
    perf: Perf = RooflinePerf()
    slo: SloTargets = SloTargets()
    router: RouterSettings = RouterSettings()
    handoff: HandoffSettings = HandoffSettings()
    kv_pool: KvPoolSettings | None = None
    prices: PricesOrFile | None = None
    failures: Annotated[list[Failure], Field(default_factory=list)]
    compare_aggregated: bool = True
    search: SearchSettings | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
