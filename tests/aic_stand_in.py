"""A stand-in for aiconfigurator-core: the few names of it that are used, over a plain line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvfabric.app import aic_engine, step_times_command

SYSTEM_VERSIONS = {("h100_sxm", "vllm"): "0.24.0"}
CARRIED = (
    "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Llama-3.1-70B-Instruct-FP8",
    "x/Mixtral-8x7B-v0.1",
)
NETWORK_FREE = frozenset(CARRIED[:2])


class Handle:
    """Takes 5 ms and 40 us per token for prompts, 9 ms and 60 us per request for decodes."""

    asked: tuple[tuple[str, str, str], dict[str, Any]] | None = None
    files: frozenset[str] = frozenset()

    @classmethod
    def compile(cls, model: str, system: str, backend: str, **options: Any) -> "Handle":
        if options["tp_size"] == 3:
            raise AssertionError("num_heads 64 should be divisible by tp_size 3 ")
        logging.getLogger("aiconfigurator_core").warning("low fidelity")
        if Path(model).is_dir():
            assert (Path(model) / "config.json").read_text()
            cls.files = frozenset(path.name for path in Path(model).iterdir())
        cls.asked = (model, system, backend), options
        return cls()

    def predict_prefill_latency(self, num_prompts: int, length: int, prefix: int = 0) -> float:
        assert num_prompts == 1
        assert length > prefix
        return 5 + 0.04 * (length - prefix) + 1e-6 * prefix

    def predict_decode_latency(self, num_decodes: int, context: int) -> float:
        return 9 + 0.06 * num_decodes + 2e-5 * num_decodes * context


@contextmanager
def stand_in(folder: Path) -> Iterator[type[Handle]]:
    """Put it in place of the package; its carried configurations lie in a folder."""
    configs = folder / "model_configs"
    configs.mkdir()
    for name in CARRIED:
        (configs / f"{name.replace('/', '--')}_config.json").write_text("{}")
    (configs / "nvidia--Llama-3.1-70B-Instruct-FP8_hf_quant_config.json").write_text("{}")
    modules = {
        "": SimpleNamespace(__file__=str(folder / "__init__.py")),
        "sdk.common": SimpleNamespace(DefaultHFModels=NETWORK_FREE),
        "sdk.engine": SimpleNamespace(EngineHandle=Handle),
        "sdk.perf_database": SimpleNamespace(
            get_latest_database_version=lambda *key: SYSTEM_VERSIONS.get(key),
            get_supported_databases=lambda: {"h100_sxm": {}, "gb200": {}},
        ),
    }
    Handle.asked = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aic_engine, "_module", modules.__getitem__)
        patch.setattr(aic_engine, "_package_version", lambda: "0.12.0")
        patch.setattr(step_times_command, "is_installed", lambda: True)
        yield Handle
