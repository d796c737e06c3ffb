"""A small plan over a real fabric, for tests of whole runs."""

from kvfabric.catalog.gpus import gpu
from kvfabric.catalog.models import model_config
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.networks.network import FabricNetwork
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.metrics.latency import Slo
from kvfabric.perf.handoff import ROCE_FRAME_BYTES, ROCE_PAYLOAD_BYTES
from kvfabric.plan.fleet import build_fleet, build_simulation
from kvfabric.plan.request import FabricChoice, NetworkRequest, PlanRequest, WorkerRequest
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.sim.simulation import RunResult, Simulation

GBIT = 10**9
MODEL = "llama-3.1-8b"
BYTES_PER_TOKEN = 131_072  # 2 x 32 layers x 8 KV heads x 128 x 2 bytes
HASH_TOKENS = 64


def plain_workload(num_requests: int = 40) -> Workload:
    """Return requests 2 ms apart that share one of three openings of 1,024 tokens."""
    specs = tuple(
        RequestSpec(
            request_id=i,
            arrival_ns=i * 2_000_000,
            num_prompt_tokens=1_500 + 131 * (i % 7),
            num_output_tokens=5 + 9 * (i % 5),
            block_hashes=tuple(1000 * (i % 3) + k for k in range(16))
            + tuple(10**6 * (i + 1) + k for k in range(16, (1_500 + 131 * (i % 7)) // HASH_TOKENS)),
        )
        for i in range(num_requests)
    )
    return Workload(
        name="test", requests=specs, hash_block_tokens=HASH_TOKENS, num_rows=num_requests
    )


def plan_request(
    *,
    workers: WorkerRequest | None = None,
    workload: Workload | None = None,
    fabrics: tuple[str, ...] = ("roft", "zcube"),
    policies: tuple[str, ...] = ("ecmp", "assigned"),
    slo: Slo | None = None,
) -> PlanRequest:
    """Return a plan of two servers: two prefill and two decode workers of four GPUs."""
    return PlanRequest(
        name="test",
        model_name=MODEL,
        geometry=geometry_from_config(model_config(MODEL), where=MODEL),
        gpu=gpu("h100-sxm-80gb"),
        num_users=10,
        num_context_tokens=4_000,
        workers=workers or WorkerRequest(num_prefill=2, num_decode=2, tp=4),
        network=NetworkRequest(
            nic_rate_bps=400 * GBIT,
            fabrics=tuple(FabricChoice(kind=kind, radix=16) for kind in fabrics),
            load_balancing=policies,
        ),
        workload=workload or plain_workload(),
        slo=slo or Slo(ttft_ns=500_000_000, tpot_ns=50_000_000),
    )


def simulation_on(
    request: PlanRequest, kind: str, policy: str, *, is_disaggregated: bool = True
) -> tuple[Simulation, FabricNetwork]:
    """Return the plan's simulation over one fabric, ready to run, and its network."""
    rate_bps = request.network.nic_rate_bps
    topology = build_topology(kind, request.workers.num_gpus, radix=16, nic_rate_bps=rate_bps)
    balancer = make_load_balancer(policy, topology, queue_pairs=2, seed=request.seed)
    network = FabricNetwork(
        balancer, payload_bytes=ROCE_PAYLOAD_BYTES, frame_bytes=ROCE_FRAME_BYTES
    )
    fleet = build_fleet(request)
    simulation = build_simulation(request, fleet, network, is_disaggregated=is_disaggregated)
    return simulation, network


def run_on(request: PlanRequest, kind: str = "roft", policy: str = "assigned") -> RunResult:
    return simulation_on(request, kind, policy)[0].run()
