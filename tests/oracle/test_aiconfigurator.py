"""aiconfigurator-core itself, where it is installed: its published figures come through unchanged.

Source: aiconfigurator-core 0.12.0 (Apache-2.0), vllm 0.24.0 tables, asked directly on 2026-11-30.
"""

import importlib.util

import pytest

from kvfabric.app.aic_model import AicWorker, aic_model
from kvfabric.app.aic_step_times import GridLimits
from kvfabric.app.models import load_geometry
from kvfabric.catalog.gpus import gpu
from kvfabric.errors import ConfigError
from kvfabric.protocol.step import StepShape

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed",
)
LIMITS = GridLimits(256, 8192, 32_768)


def worker(model: str, name: str, tp: int, **options: object) -> AicWorker:
    geometry = load_geometry(model)
    fields: dict[str, object] = {"weights": None, "kv_element_bytes": 2}
    return AicWorker(
        model_name=model,
        geometry=geometry,
        gpu=gpu(name),
        tp=tp,
        **(fields | options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("model", "name", "tp", "prefill_ms", "decode_ms"),
    [
        ("llama-3.1-70b", "h100-sxm-80gb", 8, 169.60, 12.66),
        ("llama-3.1-70b", "h200-sxm-141gb", 8, 164.9, 10.48),
        ("llama-3.1-70b", "b200-sxm-180gb", 8, 96.4, 10.4),
        ("llama-3.1-8b", "h100-sxm-80gb", 1, 90.1, 12.35),
        ("qwen3-235b-a22b", "h200-sxm-141gb", 8, 125.6, 21.69),
    ],
)
def test_its_steps_come_through(
    model: str, name: str, tp: int, prefill_ms: float, decode_ms: float
) -> None:
    found = aic_model(worker(model, name, tp), LIMITS)
    prompt = found.mixed_step_ns(StepShape(0, 0, ((4096, 0),)))
    decodes = found.mixed_step_ns(StepShape(32, 32 * 4096))
    assert prompt / 1e6 == pytest.approx(prefill_ms, rel=0.002)
    assert decodes / 1e6 == pytest.approx(decode_ms, rel=0.005)


def test_whole_experts_per_rank_take_longer() -> None:
    found = aic_model(
        worker("qwen3-235b-a22b", "h200-sxm-141gb", 8, is_expert_parallel=True), LIMITS
    )
    assert found.mixed_step_ns(StepShape(0, 0, ((4096, 0),))) / 1e6 == pytest.approx(
        146.8, rel=0.001
    )
    assert "whole experts per rank" in found.source.text


def test_too_fast_answers_are_raised_and_counted() -> None:
    """Few tokens behind a long history, in less than it takes to read their KV cache."""
    asked = worker("llama-3.1-8b", "h100-sxm-80gb", 1)
    found = aic_model(asked, GridLimits(256, 8192, 131_072))
    assert "times raised to 0.9 of what the data sheet allows" in found.source.text
    shape = StepShape(0, 0, ((1, 131_072),))
    floor = asked.floor().model
    assert floor is not None
    assert found.mixed_step_ns(shape) >= floor.mixed_step_ns(shape) * 9 // 10


def test_a_model_it_would_download_is_read_from_the_package() -> None:
    assert "Mixtral" in aic_model(worker("mixtral-8x7b", "h100-sxm-80gb", 8), LIMITS).source.text


def test_what_it_refuses_is_one_message() -> None:
    with pytest.raises(ConfigError, match=r"cannot tell MiniMaxAI/MiniMax-M2\.5 tp 8"):
        aic_model(worker("minimax-m2.5", "h100-sxm-80gb", 8), LIMITS)
