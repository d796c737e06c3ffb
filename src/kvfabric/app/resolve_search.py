"""From the ``search:`` section of a scenario to what a search may vary."""

from pathlib import Path

from kvfabric.app.resolve import fabric_choice, resolve
from kvfabric.app.resolve_perf import step_model
from kvfabric.app.scenario import Fabric, Scenario
from kvfabric.app.scenario_fabric import FabricKind
from kvfabric.app.scenario_perf import RooflinePerf
from kvfabric.app.scenario_search import GpuRange, SearchSettings
from kvfabric.errors import ConfigError
from kvfabric.plan.request import FabricChoice, WorkerRequest
from kvfabric.plan.search.space import Mode, SearchRequest, SearchSpace, default_gpu_counts
from kvfabric.protocol.ports import StepTimeModel

_TPS = (1, 2, 4, 8)


def with_search(scenario: Scenario) -> Scenario:
    """Return the scenario with a search section in which nothing is left open.

    Keys that the file does not state stay marked as defaults.
    """
    assert scenario.fabric is not None, "checked before"
    stated = scenario.search or SearchSettings()
    known = {key for key in stated.model_fields_set if getattr(stated, key) is not None}
    filled = stated.model_copy(
        update={
            key: value
            for key, value in _defaults(scenario, scenario.fabric).items()
            if getattr(stated, key) is None
        }
    )
    filled.model_fields_set.intersection_update(known)
    return scenario.model_copy(update={"search": filled})


def _defaults(scenario: Scenario, fabric: Fabric) -> dict[str, object]:
    workers = scenario.workers
    is_bound = not isinstance(scenario.perf, RooflinePerf) or workers.num_blocks is not None
    switches = None if fabric.switch is None else [fabric.switch]
    return {
        "gpus": list(default_gpu_counts(_num_gpus(scenario))),
        "tp": [workers.tp] if is_bound else list(_TPS),
        "modes": [mode.value for mode in Mode],
        "kinds": list(fabric.kinds),
        "nic_rates": [fabric.nic_rate],
        "switches": switches,
        "load_balancing": list(fabric.load_balancing),
    }


def _num_gpus(scenario: Scenario) -> int:
    workers = scenario.workers
    fleet = WorkerRequest(
        num_prefill=workers.prefill,
        num_decode=workers.decode,
        tp=workers.tp,
        decode_tp=workers.decode_tp,
        prefill_cp=workers.prefill_cp,
    )
    return fleet.num_gpus


def resolve_search(scenario: Scenario, *, folder: Path, name: str) -> SearchRequest:
    """Return the search of a scenario whose search section is complete; see ``with_search``.

    Raises:
        ConfigError: a number of KV blocks that holds for one size of worker only, or what
            ``resolve`` refuses.
    """
    settings = scenario.search
    assert settings is not None, "filled before"
    space = search_space(settings)
    _check_blocks(scenario, space, name)
    return SearchRequest(
        base=resolve(scenario, folder=folder, name=name),
        space=space,
        attainment=settings.attainment,
        cost_limit=settings.cost_limit,
        step_models=_step_models(scenario, space, folder=folder, name=name),
    )


def search_space(settings: SearchSettings) -> SearchSpace:
    """Return what a complete search section lets vary."""
    gpus, tps, kinds = settings.gpus, settings.tp, settings.kinds
    assert gpus is not None, "filled before"
    assert tps is not None, "filled before"
    assert kinds is not None, "filled before"
    modes = settings.modes or [mode.value for mode in Mode]
    return SearchSpace(
        num_gpus=gpus.values() if isinstance(gpus, GpuRange) else tuple(gpus),
        tps=tuple(tps),
        decode_tps=tuple(settings.decode_tp or ()),
        ratios=tuple(_ratio(text) for text in settings.ratios or ()),
        modes=tuple(mode for mode in Mode if mode.value in modes),
        fabrics=_labelled(kinds),
        nic_rates_bps=tuple(settings.nic_rates or ()),
        switch_capacities_bps=tuple(settings.switches or (None,)),
        load_balancing=tuple(settings.load_balancing or ()),
    )


def _labelled(kinds: list[str | FabricKind]) -> tuple[FabricChoice, ...]:
    choices = tuple(fabric_choice(kind) for kind in kinds)
    labels = [choice.label or choice.kind for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(
                f"two fabrics are called {label!r}",
                where="search.kinds",
                hint="Give each its own label",
            )
    return choices


def _ratio(text: str) -> tuple[int, int]:
    prefill, decode = text.removesuffix("D").split("P")
    return int(prefill), int(decode)


def _check_blocks(scenario: Scenario, space: SearchSpace, name: str) -> None:
    tps = {*space.tps, *space.decode_tps}
    if scenario.workers.num_blocks is not None and tps != {scenario.workers.tp}:
        raise ConfigError(
            f"num_blocks is of workers of {scenario.workers.tp} GPUs, and the search tries others",
            where=f"{name}: workers.num_blocks",
            hint=f"Leave it to our own sizing, or write search.tp [{scenario.workers.tp}]",
        )


def _step_models(
    scenario: Scenario, space: SearchSpace, *, folder: Path, name: str
) -> dict[int, StepTimeModel]:
    """Return measured step times by size of worker; nothing for the roofline."""
    if isinstance(scenario.perf, RooflinePerf):
        return {}
    tps = sorted({*space.tps, *space.decode_tps})
    geometry = resolve(scenario, folder=folder, name=name).geometry
    models = {tp: step_model(scenario, geometry, folder=folder, name=name, tp=tp) for tp in tps}
    return {tp: model for tp, model in models.items() if model is not None}
