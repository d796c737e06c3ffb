"""Step times of aiconfigurator-core for one worker, beside those of the roofline."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvfabric.app.aic_engine import (
    SYSTEMS,
    AicEngine,
    AicRequest,
    carried_models,
    carried_name,
    quiet_logs,
    system_of,
)
from kvfabric.app.aic_step_times import DATA_SHEET, Floor, GridLimits, grid_of
from kvfabric.app.models import is_catalog_name
from kvfabric.catalog.gpus import Gpu
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.perf.work import ModelWork, work_from_geometry
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape

KNOWN_ERROR = (
    "not known for this model and GPU: the operators were measured, their sum was not; its users"
    " have reported 45 % on four A100 (aiconfigurator 1205)"
)
_SHOWN_PROMPT, _SHOWN_BATCH, _SHOWN_CONTEXT = 4_096, 64, 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class AicWorker:
    """A worker, and what of it is not the default of the package.

    Attributes:
        model_name: a catalog name, or the path of a ``config.json``.
        geometry: of the model.
        gpu: catalog GPU, or None.
        tp: tensor-parallel ranks.
        weights: format, or None for the model's own.
        kv_element_bytes: bytes per cached element.
        aic_model: name of the model in the package, if it is not found by itself.
        system: name of its tables, if not those of ``gpu``.
        backend: engine whose kernels were measured.
        is_expert_parallel: experts are placed on ranks whole, instead of cut across all.
    """

    model_name: str
    geometry: KVGeometry
    gpu: Gpu | None
    tp: int
    weights: str | None
    kv_element_bytes: int
    aic_model: str | None = None
    system: str | None = None
    backend: str = "vllm"
    is_expert_parallel: bool = False

    @property
    def is_of_gpu(self) -> bool:
        """Return whether the package's tables are those of ``gpu``."""
        if self.gpu is None:
            return False
        return self.system is None or self.system == SYSTEMS.get(self.gpu.name)

    def roofline(self) -> RooflineModel | None:
        """Return the built-in step times, or None if there are none for this model and GPU.

        Parameters of some families cannot be counted, and some GPUs have no NVLink.
        """
        if self.gpu is None:
            return None
        try:
            return RooflineModel(self._work(), self.gpu)
        except ConfigError:
            return None

    def floor(self) -> Floor:
        """Return the least that steps take; none where attention may skip most tokens.

        Routed experts count as nothing: how many of them are read depends on the routing.
        """
        is_sparse = any(group.layout.index_bytes for group in self.geometry.groups)
        if self.gpu is None or is_sparse or not self.is_of_gpu:
            return Floor(None)
        try:
            return Floor(RooflineModel(replace(self._work(), experts=None), self.gpu, DATA_SHEET))
        except ConfigError:
            return Floor(None)

    def _work(self) -> ModelWork:
        return work_from_geometry(
            self.geometry, tp=self.tp, weights=self.weights, kv_dtype_bytes=self.kv_element_bytes
        )

    def request(self) -> AicRequest:
        """Return the worker in the package's names.

        Raises:
            ConfigError: it is not installed, or knows the model or the GPU by no name.
        """
        if self.system is None and self.gpu is None:
            raise ConfigError("no GPU is named", where="gpu", hint="Name one, or perf.system")
        return AicRequest(
            model=self.aic_model or self._found_model(),
            system=self.system or system_of("" if self.gpu is None else self.gpu.name),
            backend=self.backend,
            tp=self.tp,
            is_expert_parallel=self.is_expert_parallel,
            weights=self.weights,
            kv_element_bytes=self.kv_element_bytes,
        )

    def _found_model(self) -> str:
        if not is_catalog_name(self.model_name):
            return self.model_name
        return carried_name(self.model_name, carried_models())


def aic_step_times(worker: AicWorker, limits: GridLimits) -> StepTimes:
    """Return a grid of the package's step times that covers the limits.

    Raises:
        ConfigError: it is not installed, or lacks the model, the GPU or this split.
    """
    engine = AicEngine(worker.request())

    def source(floor: Floor) -> Source:
        parts = [engine.name, *_beside(engine, worker)]
        if floor.model is None:
            parts.append("not checked against a data sheet")
        if floor.num_raised:
            parts.append(
                f"{floor.num_raised} of {floor.num_asked} times raised to 0.9 of what the data"
                " sheet allows"
            )
        return Source(SourceKind.PUBLISHED, "; ".join(parts))

    with quiet_logs():
        return grid_of(engine, limits, worker.floor(), source, known_error=KNOWN_ERROR)


def aic_model(worker: AicWorker, limits: GridLimits) -> MeasuredStepModel:
    """Return the step-time model of such a grid.

    Raises:
        ConfigError: as ``aic_step_times``.
    """
    return MeasuredStepModel(aic_step_times(worker, limits))


def _beside(engine: AicEngine, worker: AicWorker) -> Iterator[str]:
    """Yield what two steps take here and by the roofline, if it knows the GPU."""
    roofline = worker.roofline()
    if roofline is None or worker.gpu is None or not worker.is_of_gpu:
        return
    prompt = StepShape(0, 0, ((_SHOWN_PROMPT, 0),))
    batch = StepShape(_SHOWN_BATCH, _SHOWN_BATCH * _SHOWN_CONTEXT)
    prefill_ns = engine.prefill_ns(_SHOWN_PROMPT, 0)
    decode_ns = engine.decode_ns(_SHOWN_BATCH, _SHOWN_CONTEXT)
    yield (
        f"{_SHOWN_PROMPT:,} prompt tokens {prefill_ns / 1e6:.1f} ms and"
        f" {_SHOWN_BATCH} decodes at {_SHOWN_CONTEXT:,} tokens {decode_ns / 1e6:.1f} ms, by the"
        f" roofline of {worker.gpu.name} {roofline.mixed_step_ns(prompt) / 1e6:.1f} and"
        f" {roofline.mixed_step_ns(batch) / 1e6:.1f} ms"
    )
