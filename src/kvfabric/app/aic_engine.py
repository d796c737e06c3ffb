"""aiconfigurator-core: step times added up from operators that NVIDIA measured.

An optional package (extra ``aic``) with tables of many GPUs and engines. It is asked about models
whose configuration it carries or that lie on disk, so that it downloads nothing.
"""

import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kvfabric.app.model_words import words_between
from kvfabric.errors import ConfigError

PACKAGE: Final = "aiconfigurator_core"
_DISTRIBUTION: Final = "aiconfigurator-core"
SYSTEMS: Final = MappingProxyType(
    {
        "a100-sxm-80gb": "a100_sxm",
        "h100-sxm-80gb": "h100_sxm",
        "h200-sxm-141gb": "h200_sxm",
        "b200-sxm-180gb": "b200_sxm",
        "l40s": "l40s",
    }
)
"""Its names of our GPUs."""
BACKENDS: Final = ("vllm", "sglang", "trtllm")
_NS_PER_MS = 1_000_000
_CONFIG, _QUANT_CONFIG = "_config.json", "_hf_quant_config.json"
_Answer = TypeVar("_Answer")
_QUANT_OF: Final = MappingProxyType({"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8"})
_KV_QUANT_OF_BYTES: Final = MappingProxyType({2: "bfloat16", 1: "fp8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AicRequest:
    """One worker, in the package's names.

    Attributes:
        model: name of a configuration that it carries, or a folder with a ``config.json``.
        system: name of its tables for a GPU.
        backend: engine whose kernels were measured.
        tp: tensor-parallel ranks.
        is_expert_parallel: experts are placed on ranks whole, instead of cut across all.
        weights: format other than the model's own, or None.
        kv_element_bytes: bytes per cached element.
    """

    model: str
    system: str
    backend: str = "vllm"
    tp: int = 1
    is_expert_parallel: bool = False
    weights: str | None = None
    kv_element_bytes: int = 2


def is_installed() -> bool:
    """Return whether the package is there."""
    return find_spec(PACKAGE) is not None


def system_of(gpu_name: str) -> str:
    """Return its name of a GPU.

    Raises:
        ConfigError: it has no tables of that one.
    """
    if gpu_name not in SYSTEMS:
        raise ConfigError(
            f"aiconfigurator has no tables of {gpu_name}",
            hint=f"It has those of {', '.join(SYSTEMS)}",
        )
    return SYSTEMS[gpu_name]


def carried_models() -> Mapping[str, Path]:
    """Return the files of the configurations that the package carries, by the models' names.

    Raises:
        ConfigError: it is not installed.
    """
    folder = Path(str(_module("").__file__)).parent / "model_configs"
    return {
        path.name.removesuffix(_CONFIG).replace("--", "/", 1): path
        for path in folder.glob(f"*{_CONFIG}")
        if not path.name.endswith(_QUANT_CONFIG)
    }


def carried_name(model: str, carried: Collection[str]) -> str:
    """Return the carried model of the same sizes as one of our catalog, as published.

    Raises:
        ConfigError: there is none.
    """
    found = sorted(
        (len(words), name)
        for name in carried
        if (words := words_between(model, name)) is not None and "fp8" not in words
    )
    if not found:
        raise ConfigError(
            f"aiconfigurator carries no {model}",
            hint="Name one of its models, or a folder with a config.json, as perf.model",
        )
    return found[0][1]


class AicEngine:
    """One worker's step times, from whole steps of the package."""

    def __init__(self, request: AicRequest) -> None:
        """Look up the tables.

        Raises:
            ConfigError: it is not installed, or lacks the model, the GPU or this split.
        """
        self._request = request
        handle = _module("sdk.engine").EngineHandle
        self._table_version = _table_version(request)
        cut, placed = (1, request.tp) if request.is_expert_parallel else (request.tp, 1)
        options: dict[str, object] = {"tp_size": request.tp}
        options |= {"moe_tp_size": cut, "moe_ep_size": placed}
        options |= _quantization(request)
        with quiet_logs(), _model_path(request.model) as model:
            self._handle: Any = _asked(
                lambda: handle.compile(model, request.system, request.backend, **options), request
            )

    @property
    def name(self) -> str:
        """Return what was asked, in words."""
        request = self._request
        experts = ", whole experts per rank" if request.is_expert_parallel else ""
        return (
            f"{_DISTRIBUTION} {_package_version()}, {request.backend} {self._table_version} tables"
            f" of {request.system}: {request.model} tp {request.tp}{experts}"
        )

    def prefill_ns(self, num_tokens: int, num_history_tokens: int) -> int:
        """Return a step of one prompt's tokens behind those that are cached."""
        length = num_tokens + num_history_tokens
        return self._ns(
            lambda: self._handle.predict_prefill_latency(1, length, prefix=num_history_tokens)
        )

    def decode_ns(self, num_decodes: int, context: int) -> int:
        """Return a step of decodes that all have the same context."""
        return self._ns(lambda: self._handle.predict_decode_latency(num_decodes, context))

    def _ns(self, ask: Callable[[], float]) -> int:
        return max(1, round(_asked(ask, self._request) * _NS_PER_MS))


def _module(name: str) -> Any:
    if not is_installed():
        raise ConfigError(
            f"{_DISTRIBUTION} is not installed", hint="Run: pip install 'kvfabric[aic]'"
        )
    try:
        return import_module(f"{PACKAGE}.{name}".rstrip("."))
    except ImportError as error:
        raise ConfigError(
            f"{_DISTRIBUTION} cannot be used: {error}",
            hint="Run: pip install --force-reinstall 'kvfabric[aic]'",
        ) from None


def _package_version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "of unknown version"


def _table_version(request: AicRequest) -> str:
    databases = _module("sdk.perf_database")
    with quiet_logs():
        found = databases.get_latest_database_version(request.system, request.backend)
        systems: Collection[str] = () if found else databases.get_supported_databases()
    if not found:
        raise ConfigError(
            f"aiconfigurator has no {request.backend} tables of {request.system!r}",
            hint=f"It has systems {', '.join(sorted(systems))} and backends {', '.join(BACKENDS)}",
        )
    return str(found)


@contextmanager
def _model_path(model: str) -> Iterator[str]:
    """Give what the package does not look for in the network."""
    carried = carried_models()
    path = carried.get(model, Path(model))
    if model in _module("sdk.common").DefaultHFModels:
        yield model
    elif path.is_file() and path.name == "config.json":
        yield str(path.parent)
    elif path.is_file():  # carried, or a configuration of another name
        quantization = path.with_name(path.name.removesuffix(_CONFIG) + _QUANT_CONFIG)
        with TemporaryDirectory() as folder:
            shutil.copyfile(path, Path(folder) / "config.json")
            if path.name.endswith(_CONFIG) and quantization.is_file():
                shutil.copyfile(quantization, Path(folder) / "hf_quant_config.json")
            yield folder
    elif (path / "config.json").is_file():
        yield str(path)
    else:
        names = ", ".join(sorted(name for name in carried if name.startswith("meta-llama/")))
        raise ConfigError(
            f"aiconfigurator carries no model {model!r}, and no config.json lies there",
            hint=f"Write a name such as {names}, or a folder with a config.json",
        )


def _quantization(request: AicRequest) -> dict[str, object]:
    found: dict[str, object] = {}
    if request.weights is not None:
        if request.weights not in _QUANT_OF:
            raise ConfigError(
                f"weights in {request.weights} for aiconfigurator",
                hint=f"Write auto, {', '.join(_QUANT_OF)}, or name a quantized model as perf.model",
            )
        found |= dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), _QUANT_OF[request.weights])
    if request.kv_element_bytes not in _KV_QUANT_OF_BYTES:
        raise ConfigError(
            f"a KV cache of {request.kv_element_bytes} bytes per element for aiconfigurator",
            hint="Write kv_dtype bf16 or fp8",
        )
    found["kvcache_quant_mode"] = _KV_QUANT_OF_BYTES[request.kv_element_bytes]
    return found


def _asked(ask: Callable[[], _Answer], request: AicRequest) -> _Answer:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - of many kinds, its asserts among them
        raise ConfigError(
            f"aiconfigurator cannot tell {request.model} tp {request.tp} on {request.system}:"
            f" {str(error)[:300] or repr(error)}",
            hint="Choose another tp, experts, or dtype, or use perf kind roofline",
        ) from None


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Keep what it logs off stderr: which table stands in for which."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
