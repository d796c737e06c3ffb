"""The scenario file as pydantic models; read once, turned into the packages' records, thrown away.

Defaults that decide results stand here, in one place, and are shown by ``--show``.
"""

from typing import Annotated, Literal

from pydantic import Field

from kvfabric.app.quantities import DurationNs, RateBps, Section
from kvfabric.app.scenario_workload import GeneratedWorkload, TraceWorkload

Count = Annotated[int, Field(ge=1)]


class Workers(Section):
    """The fleet; names as in vLLM."""

    prefill: Count
    decode: Count
    tp: Count = 8
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: Count = 64
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 8192
    max_model_len: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    enable_prefix_caching: bool = True


class FabricKind(Section):
    """One fabric to compare, where its name alone does not say enough."""

    kind: str
    label: str | None = None
    radix: Count | None = None
    tiers: Count | None = None
    oversubscription: Annotated[float, Field(gt=0)] = 1.0


class Fabric(Section):
    """The fabrics to compare and how traffic is spread over them."""

    nic_rate: RateBps
    switch: RateBps | None = None
    kinds: Annotated[list[str | FabricKind], Field(min_length=1)]
    load_balancing: Annotated[
        list[str], Field(min_length=1, default_factory=lambda: ["ecmp", "assigned"])
    ]
    queue_pairs: Count = 4
    placement: Literal["split", "interleaved"] = "split"


class SloTargets(Section):
    """Latency targets of a request."""

    ttft: DurationNs | None = None
    tpot: DurationNs | None = None


class RouterSettings(Section):
    """How prefill workers are chosen, and how old the router's view of them may be."""

    policy: Literal["round_robin", "least_loaded", "prefix_aware"] = "prefix_aware"
    signal_interval: DurationNs = 50_000_000


class HandoffSettings(Section):
    """When a hand-off between workers is given up."""

    deadline: DurationNs = 60_000_000_000


class Scenario(Section):
    """Everything ``kvfabric plan`` reads."""

    schema_version: Literal[1]
    name: str
    model: str
    gpu: str
    users: Count
    context_tokens: Count
    workers: Workers
    fabric: Fabric
    workload: Annotated[GeneratedWorkload | TraceWorkload, Field(discriminator="kind")]
    slo: SloTargets = SloTargets()
    router: RouterSettings = RouterSettings()
    handoff: HandoffSettings = HandoffSettings()
    compare_aggregated: bool = True
    seed: Annotated[int, Field(ge=0)] = 0
