"""``kvfabric step-times``: what steps of one worker take, by every source there is."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvfabric.app.aic_engine import is_installed
from kvfabric.app.aic_model import AicWorker, aic_step_times
from kvfabric.app.aic_step_times import GridLimits
from kvfabric.app.flags import told_by_flag
from kvfabric.app.layout import fold, table
from kvfabric.app.models import load_geometry
from kvfabric.app.output import write_text
from kvfabric.app.step_times_file import step_times_json
from kvfabric.catalog.gpus import gpu
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import kv_dtype_bytes
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepShape

_FLAGS: Final = {"gpu": "--gpu", "kv_dtype": "--kv-dtype", "weight_dtype": "--weight-dtype"}
_PROMPTS: Final = ((512, 0), (2_048, 0), (8_192, 0), (32_768, 0), (2_048, 32_768))
_DECODES: Final = ((1, 1_024), (16, 4_096), (64, 4_096), (256, 1_024), (64, 32_768))
_LIMITS: Final = GridLimits(num_requests=1_024, num_step_tokens=32_768, num_context_tokens=131_072)
_NOT_INSTALLED: Final = "not installed; pip install 'kvfabric[aic]'"


@dataclass(frozen=True, slots=True)
class _Step:
    """A step to show: its words, and its shape."""

    words: str
    shape: StepShape


@dataclass(frozen=True, slots=True)
class _Found:
    """The step times of a worker that there are, and why there are no others."""

    roofline: RooflineModel | None
    aic: StepTimes | None
    why_no_aic: str


def run_step_times(options: Mapping[str, Any]) -> str:
    """Return what the command prints, and write the grid of aiconfigurator where asked to.

    Raises:
        ConfigError: names the flag and what to write instead.
    """
    with told_by_flag(_FLAGS):
        worker = _worker(options)
    out: Path | None = options["out"]
    found = _find(worker, is_needed=out is not None)
    if found.roofline is None and found.aic is None:
        raise ConfigError(
            f"no step times of {worker.model_name} on {options['gpu']} tp {worker.tp}:"
            f" no roofline, and aiconfigurator: {found.why_no_aic}",
            hint="Name another GPU or --tp",
        )
    if out is not None and found.aic is not None:
        write_text(out, step_times_json(found.aic), where="--out")
    rows = [(step, *_times_ms(found, step.shape)) for step in _steps()]
    if options["output_format"] == "json":
        return _json(worker, found, rows)
    return _text(worker, found, rows)


def _worker(options: Mapping[str, Any]) -> AicWorker:
    geometry = load_geometry(options["model"], where="--model")
    weights = options["weight_dtype"]
    return AicWorker(
        model_name=options["model"],
        geometry=geometry,
        gpu=gpu(options["gpu"], where="--gpu"),
        tp=options["tp"],
        weights=None if weights == "auto" else weights,
        kv_element_bytes=kv_dtype_bytes(options["kv_dtype"], geometry, where="kv_dtype"),
        aic_model=options["aic_model"],
        system=options["system"],
        backend=options["backend"],
        is_expert_parallel=options["experts"] == "expert",
    )


def _find(worker: AicWorker, *, is_needed: bool) -> _Found:
    roofline = worker.roofline()
    if not is_needed and not is_installed():
        return _Found(roofline, None, _NOT_INSTALLED)
    try:
        return _Found(roofline, aic_step_times(worker, _LIMITS), "")
    except ConfigError as error:
        if is_needed:
            raise
        return _Found(roofline, None, error.what)


def _steps() -> Iterator[_Step]:
    for num_tokens, history in _PROMPTS:
        behind = f" behind {history:,}" if history else ""
        shape = StepShape(0, 0, ((num_tokens, history),))
        yield _Step(f"{num_tokens:,} prompt tokens{behind}", shape)
    for num_decodes, context in _DECODES:
        plural = "s" if num_decodes > 1 else ""
        shape = StepShape(num_decodes, num_decodes * context)
        yield _Step(f"{num_decodes:,} decode{plural} at {context:,} tokens", shape)


def _times_ms(found: _Found, shape: StepShape) -> tuple[float | None, float | None]:
    aic = None if found.aic is None else MeasuredStepModel(found.aic)
    return _time_ms(found.roofline, shape), _time_ms(aic, shape)


def _time_ms(model: StepTimeModel | None, shape: StepShape) -> float | None:
    return None if model is None else model.mixed_step_ns(shape) / 1e6


_Rows = list[tuple[_Step, float | None, float | None]]


def _text(worker: AicWorker, found: _Found, rows: _Rows) -> str:
    name = "" if worker.gpu is None else worker.gpu.name
    grid = table(
        f"{worker.model_name} on {name}, tp {worker.tp}: ms per step",
        (" step", "roofline", "aiconfigurator", "roofline / aiconfigurator"),
        (
            (f" {step.words}", _shown(roofline), _shown(aic), _ratio(roofline, aic))
            for step, roofline, aic in rows
        ),
    )
    sources = [f"{what}: {source}." for what, source in _sources(found)]
    return "\n".join((grid, *map(fold, sources))) + "\n"


def _sources(found: _Found) -> Iterator[tuple[str, str]]:
    roofline = "none for this model and GPU" if found.roofline is None else found.roofline.source
    yield "Roofline", str(roofline)
    yield "aiconfigurator", str(found.aic.source if found.aic is not None else found.why_no_aic)


def _shown(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.2f}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or theirs is None else f"{ours / theirs:.2f}"


def _json(worker: AicWorker, found: _Found, rows: _Rows) -> str:
    values = {
        "model": worker.model_name,
        "gpu": None if worker.gpu is None else worker.gpu.name,
        "tp": worker.tp,
        "sources": dict(_sources(found)),
        "steps": [
            {
                "step": step.words,
                "num_decodes": step.shape.num_decodes,
                "context_tokens": step.shape.context_tokens,
                "prefill": step.shape.prefill,
                "roofline_ms": roofline,
                "aiconfigurator_ms": aic,
            }
            for step, roofline, aic in rows
        ],
    }
    return json.dumps(values, indent=2) + "\n"
