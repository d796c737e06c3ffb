"""From the ``perf:`` section of a scenario to step times, with the checks that need files."""

from pathlib import Path

from kvfabric.app.aic_model import AicWorker, aic_model
from kvfabric.app.aic_step_times import GridLimits
from kvfabric.app.model_words import words_between
from kvfabric.app.models import is_catalog_name
from kvfabric.app.profile_directory import read_profile
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_perf import AicPerf, Collectives, ProfilePerf, StepTimesPerf
from kvfabric.app.step_times_file import read_step_times
from kvfabric.catalog.gpus import gpu
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry, kv_dtype_bytes
from kvfabric.perf.collectives import AnalyticCollectives, CollectiveModel, preset_collectives
from kvfabric.perf.profile import ProfileModel, RankGroups, capture_sizes
from kvfabric.perf.profile_tables import profiled_model
from kvfabric.perf.step_times import MeasuredStepModel
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.provenance import Source, SourceKind

_LONGEST_CONTEXT = 131_072  # asked for; beyond it times go on as between the last two


def step_model(
    scenario: Scenario, geometry: KVGeometry, *, folder: Path, name: str, tp: int | None = None
) -> StepTimeModel | None:
    """Return the step times that a scenario asks for; None for the roofline of its GPU.

    Args:
        scenario: as read.
        geometry: its model.
        folder: what relative paths in it start from.
        name: of the scenario file, for messages.
        tp: GPUs of the workers; by default ``workers.tp``.

    Raises:
        ConfigError: no profile is named, it is of another model, or lacks something.
    """
    perf = scenario.perf
    if isinstance(perf, StepTimesPerf):
        return MeasuredStepModel(read_step_times(folder / perf.path))
    if isinstance(perf, AicPerf):
        return _aic_model(scenario, perf, geometry, folder=folder, name=name, tp=tp)
    if not isinstance(perf, ProfilePerf):
        return None
    if perf.path is None:
        raise ConfigError(
            "no profile is named",
            where=f"{name}: perf.path",
            hint="Name its folder there, or pass --profile DIR",
        )
    tp = scenario.workers.tp if tp is None else tp
    tables = read_profile(folder / perf.path, tp=tp, num_data_ranks=perf.data_parallel)
    _check_model(scenario.model, tables.model_name, name)
    ranks = RankGroups(
        tensor=_collectives(perf, tp, name),
        num_data_ranks=perf.data_parallel,
        data=_collectives(perf, perf.data_parallel, name),
    )
    try:
        return ProfileModel(
            tables,
            profiled_model(geometry),
            ranks=ranks,
            captured=capture_sizes(perf.captured) if perf.captured else (),
            host_request_ns=perf.host_request_time or 0,
        )
    except ConfigError as error:
        raise ConfigError(
            error.what, where=error.where or f"{name}: perf", hint=error.hint
        ) from None


def _aic_model(
    scenario: Scenario,
    perf: AicPerf,
    geometry: KVGeometry,
    *,
    folder: Path,
    name: str,
    tp: int | None,
) -> StepTimeModel:
    workers = scenario.workers
    model = scenario.model if is_catalog_name(scenario.model) else str(folder / scenario.model)
    weights = workers.weight_dtype
    worker = AicWorker(
        model_name=model,
        geometry=geometry,
        gpu=None if scenario.gpu is None else gpu(scenario.gpu, where=f"{name}: gpu"),
        tp=workers.tp if tp is None else tp,
        weights=None if weights == "auto" else weights,
        kv_element_bytes=kv_dtype_bytes(workers.kv_dtype, geometry, where=f"{name}: kv_dtype"),
        aic_model=perf.model,
        system=perf.system,
        backend=perf.backend,
        is_expert_parallel=perf.experts == "expert",
    )
    limits = GridLimits(
        num_requests=workers.max_num_seqs,
        num_step_tokens=workers.max_num_batched_tokens,
        num_context_tokens=workers.max_model_len or _LONGEST_CONTEXT,
    )
    try:
        return aic_model(worker, limits)
    except ConfigError as error:
        raise ConfigError(
            error.what, where=error.where or f"{name}: perf", hint=error.hint
        ) from None


def _collectives(perf: ProfilePerf, num_ranks: int, name: str) -> CollectiveModel | None:
    """Return what talking among so many ranks takes; None for one rank."""
    given = perf.collectives
    if num_ranks == 1:
        return None
    if given is None:
        raise ConfigError(
            f"{num_ranks} ranks and no cost of their collectives",
            where=f"{name}: perf.collectives",
            hint="Write a preset (nvlink-h100, pcie-host or pcie-peer), or alpha, bus_bandwidth and"
            " the source of both",
        )
    if isinstance(given, Collectives):
        return AnalyticCollectives(
            num_ranks=num_ranks,
            alpha_ns=given.alpha,
            bus_bytes_per_s=given.bus_bandwidth,
            source=Source(SourceKind.ASSUMED, f"{given.source} (from the scenario)"),
        )
    return preset_collectives(given, num_ranks, where=f"{name}: perf.collectives")


def _check_model(model: str, profiled: str, name: str) -> None:
    """Refuse the profile of another model; a config.json and a profile may name none."""
    if not is_catalog_name(model) or profiled == "unknown model":
        return
    if words_between(model, profiled) is None:
        raise ConfigError(
            f"the profile is of {profiled}, the scenario's model is {model}",
            where=f"{name}: perf.path",
            hint="Name the profile of this model, or the model of this profile",
        )
