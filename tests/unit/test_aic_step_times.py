"""The grid asked of an engine: it covers what is needed, and nothing in it beats the data sheet."""

from dataclasses import replace

import pytest

from kvfabric.app.aic_model import AicWorker
from kvfabric.app.aic_step_times import DATA_SHEET, Floor, GridLimits, grid_of
from kvfabric.app.models import load_geometry
from kvfabric.catalog.gpus import gpu
from kvfabric.export.limits import stated_error
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape

H100 = "h100-sxm-80gb"


class Line:
    """A source whose steps lie on a line; some cost next to nothing."""

    def __init__(self, ns_per_token: int = 1_000_000) -> None:
        self._ns = ns_per_token

    def prefill_ns(self, num_tokens: int, num_history_tokens: int) -> int:
        return 5_000_000 + self._ns * num_tokens + num_history_tokens // 10

    def decode_ns(self, num_decodes: int, context: int) -> int:
        return 9_000_000 + self._ns * num_decodes + num_decodes * context


def worker(model: str = "llama-3.1-70b", tp: int = 8, name: str = H100) -> AicWorker:
    geometry = load_geometry(model)
    return AicWorker(
        model_name=model,
        geometry=geometry,
        gpu=gpu(name),
        tp=tp,
        weights=None,
        kv_element_bytes=geometry.dtype_bytes,
    )


def grid(source: Line, limits: GridLimits, floor: Floor) -> StepTimes:
    def named(floor: Floor) -> Source:
        return Source(SourceKind.PUBLISHED, f"{floor.num_raised} of {floor.num_asked}")

    return grid_of(source, limits, floor, named, known_error="unknown")


@pytest.mark.parametrize("limits", [(1, 1, 1), (100, 2048, 5000), (256, 8192, 131_072)])
def test_grid_reaches_every_limit(limits: tuple[int, int, int]) -> None:
    num_requests, num_tokens, num_context = limits
    times = grid(Line(), GridLimits(*limits), Floor(None))
    assert times.batches[0] == times.contexts[0] == times.chunks[0] == 1
    assert times.histories[0] == 0
    assert times.batches[-1] >= num_requests
    assert times.chunks[-1] >= num_tokens + num_requests
    assert min(times.contexts[-1], times.histories[-1]) >= num_context
    assert times.control_ns == 0


def test_steps_of_the_source_come_back() -> None:
    times = grid(Line(), GridLimits(256, 8192, 131_072), Floor(None))
    model = MeasuredStepModel(times)
    assert model.mixed_step_ns(StepShape(7, 7 * 5000)) == pytest.approx(
        9e6 + 7e6 + 35_000, rel=1e-6
    )
    prompt = model.mixed_step_ns(StepShape(0, 0, ((3000, 700),)))
    assert prompt == pytest.approx(5e6 + 3000e6 + 70, rel=1e-6)
    assert stated_error(model) == "unknown"


def test_no_time_is_below_nine_tenths_of_the_data_sheet() -> None:
    floor = worker().floor()
    assert floor.model is not None
    times = grid(Line(ns_per_token=1), GridLimits(256, 8192, 131_072), floor)
    assert times.source.text == f"{floor.num_raised} of {floor.num_asked}"
    assert 0 < floor.num_raised < floor.num_asked
    for i, num_tokens in enumerate(times.chunks):
        for j, history in enumerate(times.histories):
            least = floor.model.mixed_step_ns(StepShape(0, 0, ((num_tokens, history),)))
            assert times.prefill_ns[i][j] >= least * 9 // 10


def test_the_floor_is_below_the_roofline_everywhere() -> None:
    floor, roofline = worker().floor().model, worker().roofline()
    assert floor is not None
    assert roofline is not None
    for shape in (StepShape(1, 10), StepShape(256, 10**6), StepShape(0, 0, ((8192, 50_000),))):
        assert floor.mixed_step_ns(shape) < roofline.mixed_step_ns(shape)


def test_routed_experts_count_as_nothing() -> None:
    """How many are read depends on the routing, which the source may know better."""
    found = worker("qwen3-235b-a22b")
    floor, roofline = found.floor().model, found.roofline()
    assert floor is not None
    assert roofline is not None
    decodes = StepShape(64, 64 * 1000)
    assert floor.mixed_step_ns(decodes) < roofline.mixed_step_ns(decodes) / 4
    assert replace(found, system="h100_sxm").floor().model is not None, "the same GPU"


def test_data_sheet_means_full_peaks_and_nothing_fixed() -> None:
    for name, value in ((f, getattr(DATA_SHEET, f)) for f in DATA_SHEET.__dataclass_fields__):
        assert value == (0 if name.endswith("_ns") else 1), name


@pytest.mark.parametrize(
    "found",
    [
        worker("deepseek-v3.2"),  # attention that skips tokens
        worker("kimi-k3"),  # parameters that cannot be counted
        worker(name="l40s", tp=2),  # no NVLink
        replace(worker(), gpu=None),
        replace(worker(), system="gb200"),  # a faster chip than the one that is named
    ],
    ids=["sparse", "not counted", "no NVLink", "no GPU", "another GPU"],
)
def test_some_workers_have_no_floor(found: AicWorker) -> None:
    assert found.floor().model is None
    assert found.floor().at_least(1, StepShape(1, 1)) == 1
