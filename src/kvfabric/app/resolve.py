"""From a scenario, with what the command line replaces in it, to the records of the packages."""

from dataclasses import dataclass
from pathlib import Path

from kvfabric.app.models import load_geometry
from kvfabric.app.price_book_file import load_price_book
from kvfabric.app.resolve_perf import step_model
from kvfabric.app.scenario import Fabric, Failure, HandoffSettings, Scenario
from kvfabric.app.scenario_fabric import FabricKind
from kvfabric.app.scenario_perf import ProfilePerf
from kvfabric.app.scenario_workload import MAX_SPEEDUP, Measured, TraceWorkload
from kvfabric.catalog.gpus import gpu
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.kvcache.resharding import LatentSenders
from kvfabric.metrics.latency import Slo
from kvfabric.perf.context_parallel import CpExchange
from kvfabric.perf.step_times import MeasuredStepModel
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.failures import WorkerFailure
from kvfabric.plan.request import (
    NO_FABRIC,
    FabricChoice,
    HandoffPolicy,
    NetworkRequest,
    Placement,
    PlanRequest,
    WorkerRequest,
)
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.workload import Workload
from kvfabric.serving.coordinator_config import HandoffMode, OnExpiry, Reservation
from kvfabric.serving.decode_choice import DecodePolicy
from kvfabric.serving.router import RoutingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What flags replace; None leaves the scenario as it is."""

    trace: Path | None = None
    speedup: float | None = None
    limit: int | None = None
    seed: int | None = None
    profile: Path | None = None


_PROFILE = ProfilePerf(kind="profile")


def apply_overrides(scenario: Scenario, overrides: Overrides) -> Scenario:
    """Return the scenario with the flags in place of its values."""
    changes: dict[str, object] = {}
    if overrides.profile is not None:
        path = str(overrides.profile.absolute())
        perf = scenario.perf if isinstance(scenario.perf, ProfilePerf) else _PROFILE
        changes["perf"] = perf.model_copy(update={"path": path})
    if overrides.seed is not None:
        changes["seed"] = overrides.seed
    if overrides.speedup is not None and not 0 < overrides.speedup <= MAX_SPEEDUP:
        raise ConfigError(
            f"read {overrides.speedup}",
            where="--speedup",
            hint=f"Write a number above 0, at most {MAX_SPEEDUP:.0f}",
        )
    trace_changes: dict[str, object] = {
        key: value
        for key, value in (("speedup", overrides.speedup), ("limit", overrides.limit))
        if value is not None
    }
    workload = scenario.workload
    if overrides.trace is not None and not isinstance(workload, TraceWorkload):
        workload = TraceWorkload(kind="trace")
    if trace_changes and not isinstance(workload, TraceWorkload):
        raise ConfigError(
            "the workload is generated",
            where=", ".join(f"--{key}" for key in trace_changes),
            hint="Give a trace with --trace, or change the generator in the scenario",
        )
    if overrides.trace is not None:
        trace_changes["path"] = str(overrides.trace.absolute())
    if isinstance(workload, TraceWorkload):
        changes["workload"] = workload.model_copy(update=trace_changes)
    return scenario.model_copy(update=changes)


def resolve(scenario: Scenario, *, folder: Path, name: str) -> PlanRequest:
    """Return the plan of a scenario.

    Args:
        scenario: as read.
        folder: what relative paths in it start from.
        name: of the scenario file, for messages.

    Raises:
        ConfigError: an unknown name, an unreadable file, or a number out of range.
    """
    geometry = load_geometry(scenario.model, folder=folder, where=f"{name}: model")
    model = step_model(scenario, geometry, folder=folder, name=name)
    workload, measured = _workload(scenario, geometry, folder=folder, name=name)
    return PlanRequest(
        name=scenario.name,
        model_name=scenario.model,
        geometry=geometry,
        gpu=None if scenario.gpu is None else gpu(scenario.gpu, where=f"{name}: gpu"),
        num_users=scenario.users or 1,
        num_context_tokens=scenario.context_tokens or _longest(workload),
        workers=_workers(scenario),
        network=NO_FABRIC if scenario.fabric is None else _network(scenario.fabric),
        workload=workload,
        slo=Slo(ttft_ns=scenario.slo.ttft, tpot_ns=scenario.slo.tpot),
        routing=RoutingPolicy(scenario.router.policy),
        decode_choice=DecodePolicy(scenario.router.decode),
        signal_interval_ns=scenario.router.signal_interval,
        handoff_deadline_ns=scenario.handoff.deadline,
        handoff=_handoff(scenario.handoff),
        step_model=model,
        decode_step_model=_decode_step_model(scenario, geometry, folder=folder, name=name),
        compare_aggregated=scenario.compare_aggregated,
        seed=scenario.seed,
        measured=measured,
        failures=tuple(map(_failure, scenario.failures)),
        kv_pool=None if scenario.kv_pool is None else scenario.kv_pool.build(),
        transfer_times=model.transfers if isinstance(model, MeasuredStepModel) else None,
        price_book=load_price_book(scenario.prices, folder=folder, where=f"{name}: prices"),
    )


def _decode_step_model(
    scenario: Scenario, geometry: KVGeometry, *, folder: Path, name: str
) -> StepTimeModel | None:
    """Return the step times of decode workers, if they have other GPUs and there is a profile."""
    decode_tp = scenario.workers.decode_tp
    if decode_tp is None or decode_tp == scenario.workers.tp:
        return None
    return step_model(scenario, geometry, folder=folder, name=name, tp=decode_tp)


def _failure(failure: Failure) -> WorkerFailure:
    return WorkerFailure(worker=failure.worker, at_ns=failure.at, back_after_ns=failure.back_after)


def _longest(workload: Workload) -> int:
    return max(spec.num_prompt_tokens + spec.num_output_tokens for spec in workload.requests)


def _handoff(handoff: HandoffSettings) -> HandoffPolicy:
    return HandoffPolicy(
        mode=HandoffMode(handoff.mode),
        num_layer_groups=handoff.layer_groups,
        reservation=Reservation(handoff.reserve),
        on_expiry=OnExpiry(handoff.on_expiry),
        max_restarts=handoff.max_restarts,
        senders=LatentSenders(handoff.senders),
    )


def _workers(scenario: Scenario) -> WorkerRequest:
    workers, perf = scenario.workers, scenario.perf
    return WorkerRequest(
        num_prefill=workers.prefill,
        num_decode=workers.decode,
        tp=workers.tp,
        decode_tp=workers.decode_tp,
        prefill_cp=workers.prefill_cp,
        cp_exchange=CpExchange(workers.cp_exchange),
        kv_dtype=workers.kv_dtype,
        weight_dtype=workers.weight_dtype,
        block_size=workers.block_size,
        max_num_seqs=workers.max_num_seqs,
        max_num_batched_tokens=workers.max_num_batched_tokens,
        max_model_len=workers.max_model_len,
        gpu_memory_utilization=workers.gpu_memory_utilization,
        enable_prefix_caching=workers.enable_prefix_caching,
        num_blocks=workers.num_blocks,
        decode_num_blocks=workers.decode_num_blocks,
        async_scheduling=bool(workers.async_scheduling),
        num_data_ranks=perf.data_parallel if isinstance(perf, ProfilePerf) else 1,
    )


def _network(fabric: Fabric) -> NetworkRequest:
    return NetworkRequest(
        nic_rate_bps=fabric.nic_rate,
        fabrics=tuple(fabric_choice(kind) for kind in fabric.kinds),
        load_balancing=tuple(fabric.load_balancing),
        queue_pairs=fabric.queue_pairs,
        placement=Placement(fabric.placement),
        switch_capacity_bps=fabric.switch,
        engine=fabric.engine,
        pfc=fabric.pfc.build(),
        time_scale=fabric.pfc.time_scale,
    )


def fabric_choice(kind: str | FabricKind) -> FabricChoice:
    """Return a fabric as the plan takes it."""
    if isinstance(kind, str):
        return FabricChoice(kind=kind)
    return FabricChoice(
        kind=kind.kind,
        label=kind.label,
        radix=kind.radix,
        num_tiers=kind.tiers,
        oversubscription=kind.oversubscription,
        shape=kind.shape,
        failures=tuple(kind.failures),
        cables=CableRule(kind.cables),
    )


def _workload(
    scenario: Scenario, geometry: KVGeometry, *, folder: Path, name: str
) -> tuple[Workload, Measured]:
    workload = scenario.workload
    longest = scenario.workers.max_model_len or geometry.max_context_tokens
    if not isinstance(workload, TraceWorkload):
        try:
            generated = workload.generate(scenario.seed)
        except ConfigError as error:
            raise ConfigError(error.what, where=f"{name}: {error.where}", hint=error.hint) from None
        _check_lengths(generated, longest, name)
        return generated, ()
    if workload.path is None:
        raise ConfigError(
            "no trace is named",
            where=f"{name}: workload.path",
            hint="Name one there, or pass --trace FILE",
        )
    return workload.read(folder / workload.path, longest)


def _check_lengths(workload: Workload, longest: int | None, name: str) -> None:
    """Refuse requests that every worker would reject, as a trace with such rows is refused."""
    if longest is None:
        return
    total = [spec.num_prompt_tokens + spec.num_output_tokens for spec in workload.requests]
    too_long = sum(num_tokens > longest for num_tokens in total)
    if too_long:
        raise ConfigError(
            f"{too_long:,} of {len(total):,} requests have more than the {longest:,} tokens that"
            f" one may have: up to {max(total):,}",
            where=f"{name}: workload",
            hint="Lower prompt, output, turns or prefixes (a later turn holds all before it)",
        )
