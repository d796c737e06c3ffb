"""What a sizing asks, with the defaults of vLLM 0.19 on large GPUs, and what it refuses."""

import math
from dataclasses import dataclass

from kvfabric.catalog.gpus import Gpu
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry, kv_dtype_bytes
from kvfabric.kvcache.parameters import WeightFormat, weight_format
from kvfabric.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRequest:
    """What to size.

    Attributes:
        model_name: for the report.
        geometry: the model.
        gpu: the GPU of every worker.
        num_users: requests that are open at the same time.
        num_context_tokens: prompt and output tokens of each.
        tp: tensor-parallel GPUs of a worker; by default the smallest size that works.
        pp: pipeline ranks of a worker.
        kv_dtype: ``auto``, ``bf16``, ``fp16``, ``fp32`` or ``fp8``.
        weight_dtype: ``auto`` (as published) or a name in ``WEIGHT_FORMATS``.
        block_size: tokens per KV block.
        max_model_len: longest request the engine accepts; the context by default.
        max_num_batched_tokens: most tokens per step.
        max_num_seqs: most requests per worker.
        gpu_memory_utilization: share of the visible memory the engine may use.
        kv_memory_gib: KV memory per GPU as the engine logged it, instead of an estimate.
        total_weight_bytes: bytes of all weights, instead of a count from the config.
    """

    model_name: str
    geometry: KVGeometry
    gpu: Gpu
    num_users: int
    num_context_tokens: int
    tp: int | None = None
    pp: int = 1
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    gpu_memory_utilization: float = 0.9
    kv_memory_gib: float | None = None
    total_weight_bytes: int | None = None

    @property
    def longest_tokens(self) -> int:
        """Return the longest request the engine accepts."""
        return self.num_context_tokens if self.max_model_len is None else self.max_model_len

    @property
    def kv_element_bytes(self) -> int:
        """Return the bytes per cached element."""
        return kv_dtype_bytes(self.kv_dtype, self.geometry, where="kv_dtype")

    @property
    def stored_weights(self) -> WeightFormat:
        """Return how the weights are stored."""
        is_auto = self.weight_dtype == "auto"
        name = self.geometry.weight_format if is_auto else self.weight_dtype
        return weight_format(name, where="weight_dtype")

    @property
    def kv_memory_bytes(self) -> int | None:
        """Return the given KV memory per GPU."""
        return None if self.kv_memory_gib is None else round(self.kv_memory_gib * GIB)


def check_sizing_request(request: SizingRequest) -> None:
    """Refuse numbers that no engine takes.

    Raises:
        ConfigError: names the number and what to write instead.
        UnsupportedError: an unknown cache or weight type.
    """
    for name in ("num_users", "num_context_tokens", "block_size", "max_num_batched_tokens"):
        _check_at_least_one(name, getattr(request, name))
    _check_at_least_one("max_num_seqs", request.max_num_seqs)
    for name in ("tp", "max_model_len", "total_weight_bytes"):
        if getattr(request, name) is not None:
            _check_at_least_one(name, getattr(request, name))
    _check_kv_memory(request.kv_memory_gib)
    _check_length(request)
    kv_dtype_bytes(request.kv_dtype, request.geometry, where="kv_dtype")
    if request.weight_dtype != "auto":
        weight_format(request.weight_dtype, where="weight_dtype")


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}", where=name, hint="Write at least 1")


def _check_kv_memory(kv_memory_gib: float | None) -> None:
    if kv_memory_gib is not None and not (math.isfinite(kv_memory_gib) and kv_memory_gib > 0):
        raise ConfigError(
            f"KV memory of {kv_memory_gib} GiB",
            where="kv_memory_gib",
            hint="Write the 'Available KV cache memory' of the engine's log, such as 58.11",
        )


def _check_length(request: SizingRequest) -> None:
    if request.longest_tokens < request.num_context_tokens:
        raise ConfigError(
            f"a context of {request.num_context_tokens:,} tokens is longer than the longest "
            f"request of {request.longest_tokens:,}",
            where="max_model_len",
            hint=f"Write at least {request.num_context_tokens}",
        )
    limit = request.geometry.max_context_tokens
    if limit is not None and request.longest_tokens > limit:
        raise ConfigError(
            f"{request.model_name} has positions for {limit:,} tokens, not "
            f"{request.longest_tokens:,}",
            where="context",
            hint=f"Write at most {limit}",
        )
