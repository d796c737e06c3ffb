"""Prefill over several context-parallel ranks: their compute, and what they send on the fabric."""

import pytest
from clusters import LinearModel, workload_of
from plan_requests import GBIT, MODEL

from kvfabric.catalog.models import model_config
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.networks.network import FabricNetwork
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.perf.context_parallel import CpExchange, step_traffic
from kvfabric.perf.context_parallel_steps import ContextParallelSteps
from kvfabric.protocol.step import StepPlan, StepShape
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.sim.worker import StepTraffic

NUM_TOKENS = 8_000
# 32 layers, 8 KV heads x 128, keys and values, 2 bytes: what one prompt caches.
KV_BYTES = NUM_TOKENS * 131_072
NUM_RANKS = 2
RANK_GPUS = [(0, 1, 2, 3), (8, 9, 10, 11)]


class SlowSteps(LinearModel):
    """100 us per token, longer than a ring needs."""

    def mixed_step_ns(self, shape: StepShape) -> int:
        return 100_000 * (shape.num_decodes + sum(num for num, _ in shape.prefill))


def test_one_rank_takes_what_the_model_says() -> None:
    shape = StepShape(3, 100, ((64, 10),))
    assert ContextParallelSteps(LinearModel(), 1).mixed_step_ns(
        shape
    ) == LinearModel().mixed_step_ns(shape)


def test_ranks_share_tokens_and_pairs() -> None:
    """4 ranks, 64 tokens behind 10: 16 tokens behind 34, so 16 x 34 + 136 = 680 pairs, and the
    whole prompt's 64 x 10 + 2,080 = 2,720 are 4 times as many."""
    shape = StepShape(0, 0, ((64, 10),))
    share = StepShape(0, 0, ((16, 34),))
    steps = ContextParallelSteps(LinearModel(), 4)
    assert steps.mixed_step_ns(shape) == LinearModel().mixed_step_ns(share)


def test_no_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 context-parallel ranks"):
        ContextParallelSteps(LinearModel(), 0)


def first_token_ns(exchange: CpExchange | None) -> int:
    """Return the TTFT of one prompt whose two ranks, in two servers, exchange so."""
    spec = RequestSpec(
        request_id=0, arrival_ns=0, num_prompt_tokens=NUM_TOKENS, num_output_tokens=1
    )
    geometry = geometry_from_config(model_config(MODEL), where=MODEL)

    def traffic_of(plan: StepPlan) -> StepTraffic:
        assert exchange is not None
        chunks = [(chunk.num_tokens, chunk.num_history_tokens) for chunk in plan.prefill]
        traffic = step_traffic(exchange, geometry, RANK_GPUS, chunks)
        return StepTraffic(traffic.overlapped, traffic.exposed)

    topology = build_topology("clos", 16, radix=16, nic_rate_bps=400 * GBIT)
    network = FabricNetwork(make_load_balancer("spray", topology, queue_pairs=1, seed=0))
    scheduler = SchedulerConfig(
        num_blocks=1 + NUM_TOKENS // 16 + 1,
        block_size=16,
        max_num_seqs=1,
        max_num_batched_tokens=NUM_TOKENS,
        max_model_len=NUM_TOKENS + 1,
    )
    executor = SimExecutor(
        ContextParallelSteps(SlowSteps(), NUM_RANKS), {0: 1}, samples_first_token=True
    )
    control = CoordinatorConfig(
        worker_gpus=(tuple(gpu for rank in RANK_GPUS for gpu in rank),),
        num_decode=0,
        block_size=16,
        hash_block_tokens=0,
        max_model_len=NUM_TOKENS + 1,
        rank_bytes=lambda num_tokens: (num_tokens,) * 8,
        handoff_deadline_ns=1 << 60,
    )
    router = Router(RoutingPolicy.ROUND_ROBIN, num_prefill=1, num_decode=0)
    simulation = Simulation(
        SimulationConfig(),
        workload_of([spec]),
        Coordinator(control, router),
        [(Scheduler(scheduler), executor)],
        network,
        traffic=() if exchange is None else (traffic_of,),
    )
    (record,) = simulation.run(check=True).records
    assert record.first_token_ns is not None
    return record.first_token_ns


def test_gathered_keys_and_values_delay_the_first_token_by_their_time_on_the_wire() -> None:
    """Each of the 4 GPUs of a rank sends half of its quarter of the KV cache to its twin in the
    other server at 400 Gbit/s; both directions at once."""
    sent_bytes = KV_BYTES // 4 // NUM_RANKS
    wire_ns = sent_bytes * 8 / (400 * GBIT) * 10**9
    delay_ns = first_token_ns(CpExchange.ALL_GATHER_KV) - first_token_ns(None)
    assert delay_ns == pytest.approx(wire_ns, rel=1e-6)


def test_ring_hides_behind_the_computation() -> None:
    assert first_token_ns(CpExchange.RING_KV) == first_token_ns(None)
