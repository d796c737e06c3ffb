"""One worker under a closed loop of users with fixed lengths, for oracles of published loads."""

from dataclasses import dataclass

from kvfabric.catalog.gpus import gpu
from kvfabric.catalog.models import model_config
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import work_from_geometry
from kvfabric.plan.sizing import size
from kvfabric.plan.sizing_request import SizingRequest
from kvfabric.plan.unrouted import NoNetwork
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import Workload
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator, CoordinatorConfig
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.workload.arrivals import ClosedLoop
from kvfabric.workload.generator import GeneratorConfig, generate
from kvfabric.workload.lengths import ConstantLength


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedWorker:
    """A worker as one would start it, and the lengths of every request."""

    model_name: str
    gpu_name: str
    tp: int
    weight_dtype: str
    kv_dtype: str
    num_prompt_tokens: int
    num_output_tokens: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    async_scheduling: bool = False

    @property
    def num_total_tokens(self) -> int:
        """Return the tokens of one request, prompt and answer."""
        return self.num_prompt_tokens + self.num_output_tokens

    def sizing_request(self) -> SizingRequest:
        """Return what sizing is asked for this worker."""
        return SizingRequest(
            model_name=self.model_name,
            geometry=geometry_from_config(model_config(self.model_name), where=self.model_name),
            gpu=gpu(self.gpu_name),
            num_users=1,
            num_context_tokens=self.num_total_tokens,
            tp=self.tp,
            kv_dtype=self.kv_dtype,
            weight_dtype=self.weight_dtype,
            block_size=self.block_size,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
        )

    def pool_tokens(self) -> int:
        """Return the tokens of the KV pool by the sizing of the product."""
        return size(self.sizing_request()).pool.num_tokens


def users_workload(worker: LoopedWorker, num_users: int, num_rounds: int) -> Workload:
    """Return users who all begin at once, never pause and send ``num_rounds`` requests each."""
    config = GeneratorConfig(
        arrivals=ClosedLoop(num_users),
        prompt=ConstantLength(worker.num_prompt_tokens),
        output=ConstantLength(worker.num_output_tokens),
        num_requests=num_users * num_rounds,
        ignore_eos=True,
    )
    return generate(config, seed=1)


def run_users(worker: LoopedWorker, workload: Workload) -> tuple[RequestRecord, ...]:
    """Return the records of a workload on one aggregated worker."""
    request = worker.sizing_request()
    work = work_from_geometry(
        request.geometry,
        tp=worker.tp,
        weights=worker.weight_dtype,
        kv_dtype_bytes=request.kv_element_bytes,
    )
    scheduler = SchedulerConfig(
        num_blocks=size(request).pool.num_blocks,
        block_size=worker.block_size,
        max_num_seqs=worker.max_num_seqs,
        max_num_batched_tokens=worker.max_num_batched_tokens,
        max_model_len=worker.num_total_tokens,
        enable_prefix_caching=False,
    )
    coordinator = CoordinatorConfig(
        worker_gpus=(tuple(range(worker.tp)),),
        num_decode=0,
        block_size=worker.block_size,
        hash_block_tokens=0,
        max_model_len=worker.num_total_tokens,
        rank_bytes=lambda _: (0,) * worker.tp,
        handoff_deadline_ns=1 << 60,
    )
    executor = SimExecutor(
        RooflineModel(work, request.gpu),
        {spec.request_id: spec.num_output_tokens for spec in workload.requests},
        samples_first_token=True,
    )
    simulation = Simulation(
        SimulationConfig(async_scheduling=worker.async_scheduling),
        workload,
        Coordinator(coordinator, Router(RoutingPolicy.ROUND_ROBIN, num_prefill=1, num_decode=0)),
        [(Scheduler(scheduler), executor)],
        NoNetwork(),
    )
    return simulation.run().records
