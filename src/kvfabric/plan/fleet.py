"""From a plan to running parts: GPUs of each worker, what moves between them, one simulation."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology
from kvfabric.kvcache.resharding import KvResharding, LatentSenders, RankBytes, share_of
from kvfabric.kvcache.tier_links import TierLinks
from kvfabric.perf.context_parallel import step_traffic
from kvfabric.perf.handoff import HANDOFF_SETUP_NS
from kvfabric.plan.engines import Engine, Fleet, build_fleet, kv_element_bytes
from kvfabric.plan.pool import PoolSurroundings, pool_config
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.worker_distances import Distances, worker_distances
from kvfabric.plan.worker_request import place
from kvfabric.protocol.ports import Network, StepTimeModel
from kvfabric.protocol.step import StepPlan
from kvfabric.serving.coordinator import Coordinator, CoordinatorConfig
from kvfabric.serving.decode_choice import DecodeChoice, DecodePolicy
from kvfabric.serving.kv_pool_config import KvPoolConfig
from kvfabric.serving.router import Router
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.sim.worker import StepTraffic, TrafficOf

__all__ = [
    "Cluster",
    "Fleet",
    "MakeExecutor",
    "build_cluster",
    "build_fleet",
    "build_simulation",
    "plain_executor",
    "worker_gpus",
]

MakeExecutor = Callable[[StepTimeModel, Mapping[int, int], bool], SimExecutor]


def worker_gpus(request: PlanRequest) -> tuple[tuple[int, ...], ...]:
    """Return the fabric GPUs of each worker, prefill workers first, ranks in order."""
    return place(request.workers, request.network.placement)


def plain_executor(
    model: StepTimeModel, lengths: Mapping[int, int], samples_first_token: bool
) -> SimExecutor:
    """Return an executor that keeps nothing of what it ran."""
    return SimExecutor(model, lengths, samples_first_token=samples_first_token)


@dataclass(frozen=True, slots=True)
class _Crew:
    """The workers of one run by id, and which of them a worker of the scenario became."""

    engines: list[Engine]
    gpus: list[tuple[int, ...]]
    num_decode: int
    ids_by_name: dict[str, list[int]]

    @property
    def num_prefill(self) -> int:
        return len(self.engines) - self.num_decode


def _crew(request: PlanRequest, fleet: Fleet, *, is_disaggregated: bool) -> _Crew:
    """Return the workers; without disaggregation each context-parallel rank is one."""
    workers = request.workers
    kinds = [fleet.prefill] * workers.num_prefill + [fleet.decode] * workers.num_decode
    engines: list[Engine] = []
    gpus: list[tuple[int, ...]] = []
    ids_by_name: dict[str, list[int]] = {}
    for name, kind, own in zip(workers.names, kinds, worker_gpus(request), strict=True):
        parts = [own]
        engine = kind
        if not is_disaggregated and fleet.rank is not None and name.startswith("prefill"):
            parts = [own[i : i + workers.tp] for i in range(0, len(own), workers.tp)]
            engine = fleet.rank
        ids_by_name[name] = list(range(len(gpus), len(gpus) + len(parts)))
        engines += [engine] * len(parts)
        gpus += parts
    return _Crew(engines, gpus, workers.num_decode if is_disaggregated else 0, ids_by_name)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A simulation that has not run yet, and its control."""

    simulation: Simulation
    coordinator: Coordinator


def build_simulation(
    request: PlanRequest,
    fleet: Fleet,
    network: Network,
    *,
    is_disaggregated: bool,
    make_executor: MakeExecutor = plain_executor,
    topology: Topology | None = None,
) -> Simulation:
    """Return a simulation of the plan's load, ready to run; see ``build_cluster``."""
    return build_cluster(
        request,
        fleet,
        network,
        is_disaggregated=is_disaggregated,
        make_executor=make_executor,
        topology=topology,
    ).simulation


def build_cluster(
    request: PlanRequest,
    fleet: Fleet,
    network: Network,
    *,
    is_disaggregated: bool,
    make_executor: MakeExecutor = plain_executor,
    topology: Topology | None = None,
) -> Cluster:
    """Return a simulation of the plan's load, ready to run.

    Args:
        request: the plan.
        fleet: its parts.
        network: moves the hand-offs, and what context-parallel ranks exchange.
        is_disaggregated: False lets every worker do both.
        make_executor: makes the executor of each worker, in order, from step times, true output
            lengths, and whether the last step of a prompt samples its first token.
        topology: of the network, for receivers that are chosen by it.

    Raises:
        ConfigError: receivers are to be chosen by a topology, and there is none.
    """
    crew = _crew(request, fleet, is_disaggregated=is_disaggregated)
    lengths = {spec.request_id: spec.num_output_tokens for spec in request.workload.requests}
    num_prefill = crew.num_prefill
    workers = [
        (
            Scheduler(engine.scheduler),
            make_executor(engine.model, lengths, not is_disaggregated or worker >= num_prefill),
        )
        for worker, engine in enumerate(crew.engines)
    ]
    router = Router(
        request.routing,
        num_prefill=num_prefill,
        num_decode=crew.num_decode,
        signal_interval_ns=request.signal_interval_ns,
        decode=_decode_choice(request, crew, topology),
    )
    config = SimulationConfig(
        transfer_setup_ns=0 if request.moves_as_measured else HANDOFF_SETUP_NS,
        async_scheduling=request.workers.async_scheduling,
        lockstep=_lockstep(len(workers), request.workers.num_data_ranks),
    )
    pool = _pool(request, crew)
    coordinator = Coordinator(_coordinator_config(request, crew, pool), router)
    simulation = Simulation(
        config,
        request.workload,
        coordinator,
        workers,
        network,
        traffic=_traffic(request, crew) if is_disaggregated else (),
        tier_links=None if pool is None else TierLinks(pool.num_servers, pool.host, pool.storage),
    )
    _plan_failures(request, crew, simulation)
    return Cluster(simulation, coordinator)


def _lockstep(num_workers: int, num_data_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the workers that step together, neighbours of one kind."""
    if num_data_ranks == 1:
        return ()
    starts = range(0, num_workers, num_data_ranks)
    return tuple(tuple(range(start, start + num_data_ranks)) for start in starts)


def _decode_choice(request: PlanRequest, crew: _Crew, topology: Topology | None) -> DecodeChoice:
    """Return how receivers are chosen; every run draws the same numbers from the plan's seed."""
    policy = request.decode_choice if crew.num_decode else DecodePolicy.LEAST_LOADED
    distances: Distances = ()
    if policy is DecodePolicy.TOPOLOGY_AWARE:
        if topology is None:
            raise ConfigError(
                "receivers chosen by the topology, and no topology is given",
                where="router.decode",
                hint="Name a fabric, or choose another policy",
            )
        senders, receivers = crew.gpus[: crew.num_prefill], crew.gpus[crew.num_prefill :]
        distances = worker_distances(topology, senders, receivers, handoff_bytes(request)[0])
    draw = random.Random(request.seed).randrange  # noqa: S311
    return DecodeChoice(policy, draw=draw, distances=distances)


def _plan_failures(request: PlanRequest, crew: _Crew, simulation: Simulation) -> None:
    for failure in request.failures:
        for worker in crew.ids_by_name[failure.worker]:
            simulation.lose_worker_at(worker, failure.at_ns)
            if failure.back_ns is not None:
                simulation.join_worker_at(worker, failure.back_ns)


# ---- what moves between workers, and between the ranks of one ----------------------------------


def _coordinator_config(
    request: PlanRequest, crew: _Crew, pool: KvPoolConfig | None
) -> CoordinatorConfig:
    handoff = request.handoff
    pairs, sizes = handoff_bytes_in_turn(request)
    return CoordinatorConfig(
        worker_gpus=tuple(crew.gpus),
        num_decode=crew.num_decode,
        block_size=request.workers.block_size,
        hash_block_tokens=request.workload.hash_block_tokens,
        max_model_len=min(engine.scheduler.max_model_len for engine in crew.engines),
        rank_bytes=sizes[0],
        rank_pairs=pairs,
        rank_bytes_in_turn=sizes,
        handoff_deadline_ns=request.handoff_deadline_ns,
        reservation=handoff.reservation,
        handoff=handoff.mode,
        num_layer_groups=handoff.num_layer_groups,
        on_expiry=handoff.on_expiry,
        max_restarts=handoff.max_restarts,
        pool=pool,
    )


def _pool(request: PlanRequest, crew: _Crew) -> KvPoolConfig | None:
    """Return the settings of the KV pool, if there is one and the load can use it."""
    workers = request.workers
    if request.kv_pool is None or not request.has_pool:
        return None
    shards = KvResharding(
        request.geometry,
        tp_src=workers.tp,
        tp_dst=workers.tp,
        dtype_bytes=kv_element_bytes(request),
        senders=request.handoff.senders,
    )
    sizes = _over_ranks(shards, workers.prefill_cp if crew.num_decode else 1)
    has_fabric = request.uses_fabric and bool(crew.num_decode or not workers.num_decode)
    return pool_config(
        request.kv_pool,
        PoolSurroundings(
            worker_gpus=crew.gpus,
            scheduler=crew.engines[0].scheduler,
            model=crew.engines[0].model,
            rank_bytes=sizes[0],
            rank_bytes_in_turn=sizes,
            is_uneven=request.handoff.senders is not LatentSenders.ALL,
            hash_block_tokens=request.workload.hash_block_tokens,
            num_layers=request.geometry.num_layers,
            nic_rate_bps=request.network.nic_rate_bps if has_fabric else None,
        ),
    )


def handoff_bytes(request: PlanRequest) -> tuple[tuple[tuple[int, int], ...], RankBytes]:
    """Return the pairs of ranks of a hand-off, and the bytes of each for so many tokens."""
    pairs, sizes = handoff_bytes_in_turn(request)
    return pairs, sizes[0]


def handoff_bytes_in_turn(
    request: PlanRequest,
) -> tuple[tuple[tuple[int, int], ...], tuple[RankBytes, ...]]:
    """Return the pairs of ranks, and their bytes at each turn; one where turns do not matter.

    Every context-parallel rank has an equal share of the tokens of a prompt and sends it from its
    own GPUs; the shares of a pair of tensor-parallel ranks sum to exactly its bytes. Where one rank
    sends a latent, each context-parallel rank sends its share from one of its own; if these take
    turns, neighbours are a turn apart, so that their receivers differ.
    """
    workers = request.workers
    resharding = KvResharding(
        request.geometry,
        tp_src=workers.tp,
        tp_dst=workers.decode_gpus,
        dtype_bytes=kv_element_bytes(request),
        senders=request.handoff.senders,
    )
    cp = workers.prefill_cp
    pairs = tuple(
        (rank * workers.tp + src, dst) for rank in range(cp) for src, dst in resharding.pairs
    )
    return pairs, _over_ranks(resharding, cp)


def _over_ranks(resharding: KvResharding, num_ranks: int) -> tuple[RankBytes, ...]:
    """Return the bytes of each turn with the shares of context-parallel ranks, rank by rank."""
    turns = resharding.turns()
    if num_ranks == 1:
        return turns

    def shares(first_turn: int, num_tokens: int) -> tuple[int, ...]:
        sizes = [sizes_of(num_tokens) for sizes_of in turns]
        return tuple(
            [
                share_of(size, rank, num_ranks)
                for rank in range(num_ranks)
                for size in sizes[(first_turn + rank) % len(sizes)]
            ]
        )

    return tuple(partial(shares, turn) for turn in range(len(turns)))


def _traffic(request: PlanRequest, crew: _Crew) -> tuple[TrafficOf, ...]:
    """Return what the prefill steps of each prefill worker exchange; () for nothing."""
    if request.workers.prefill_cp == 1:
        return ()
    return tuple(_exchange(request, gpus) for gpus in crew.gpus[: crew.num_prefill])


def _exchange(request: PlanRequest, gpus: tuple[int, ...]) -> TrafficOf:
    workers, geometry = request.workers, request.geometry
    kv_bytes = kv_element_bytes(request)
    ranks = [gpus[i : i + workers.tp] for i in range(0, len(gpus), workers.tp)]

    def traffic_of(plan: StepPlan) -> StepTraffic:
        chunks = [(chunk.num_tokens, chunk.num_history_tokens) for chunk in plan.prefill]
        sent = step_traffic(workers.cp_exchange, geometry, ranks, chunks, kv_dtype_bytes=kv_bytes)
        return StepTraffic(sent.overlapped, sent.exposed)

    return traffic_of
