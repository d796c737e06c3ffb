"""From the ``perf:`` section of a scenario to step times, with the checks that need files."""

import re
from pathlib import Path

from kvfabric.app.models import is_catalog_name
from kvfabric.app.profile_directory import read_profile
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_perf import Collectives, ProfilePerf, StepTimesPerf
from kvfabric.app.step_times_file import read_step_times
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.perf.collectives import AnalyticCollectives, CollectiveModel, preset_collectives
from kvfabric.perf.profile import ProfileModel, RankGroups, capture_sizes
from kvfabric.perf.profile_tables import profiled_model
from kvfabric.perf.step_times import MeasuredStepModel
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.provenance import Source, SourceKind

# Words in the names of models that share the sizes of their base model.
_SAME_SIZES = frozenset({"meta", "instruct", "base", "chat", "it", "hf", "fp8", "bf16", "2507"})


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
    ours, theirs = _words(model), _words(profiled)
    if (ours ^ theirs) - _SAME_SIZES:
        raise ConfigError(
            f"the profile is of {profiled}, the scenario's model is {model}",
            where=f"{name}: perf.path",
            hint="Name the profile of this model, or the model of this profile",
        )


def _words(name: str) -> frozenset[str]:
    """Return the parts of a model's name, without its owner."""
    return frozenset(re.split(r"[-_ ]+", name.rsplit("/", maxsplit=1)[-1].lower()))
