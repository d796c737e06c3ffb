"""A sizing as lines for people: the equation first, then memory, blocks and the verdict."""

from kvfabric.plan.sizing import Sizing
from kvfabric.units import GIB, format_bytes


def sizing_lines(sizing: Sizing) -> list[str]:
    """Return the sizing as lines of plain text."""
    return [
        *_need_lines(sizing),
        "",
        *_memory_lines(sizing),
        "",
        *_pool_lines(sizing),
        *(f"Note: {note}" for note in sizing.request.geometry.notes),
        "",
        sizing.verdict,
    ]


def _need_lines(sizing: Sizing) -> list[str]:
    request, need = sizing.request, sizing.need
    total = format_bytes(need.kv_bytes_total)
    return [
        (
            f"{request.model_name}: KV cache of {request.num_users:,} users with "
            f"{request.num_context_tokens:,} tokens each"
        ),
        *(f"  {equation}" for equation in need.equations),
        f"  per user {format_bytes(need.kv_bytes_per_user)} ({need.kv_bytes_per_user:,} B)",
        (
            f"  all users {total} ({need.kv_bytes_total:,} B) = {need.gpus_for_kv:,} x "
            f"{request.gpu.name} for KV alone ({_gib(request.gpu.visible_bytes)} visible each)"
        ),
    ]


def _memory_lines(sizing: Sizing) -> list[str]:
    request, memory = sizing.request, sizing.memory
    gpus = sizing.tp * request.pp
    lines = [
        (
            f"A worker: {gpus} x {request.gpu.name} (tp {sizing.tp}, pp {request.pp}; tp: "
            f"{sizing.tp_rule})"
        )
    ]
    if memory.weight_bytes_per_gpu is None:
        return [*lines, f"  KV memory per GPU {_gib(memory.kv_bytes_per_gpu)} (given)"]
    budget = int(request.gpu.visible_bytes * request.gpu_memory_utilization)
    weights, activations = memory.weight_bytes_per_gpu, memory.activation_bytes_per_gpu
    other = memory.non_torch_bytes_per_gpu
    assert activations is not None
    assert other is not None
    share = f"{request.gpu_memory_utilization:g} x {_gib(request.gpu.visible_bytes)}"
    spent = f"weights {_gib(weights)} - activations {_gib(activations)} - other {_gib(other)}"
    per_gpu, per_worker = _gib(memory.kv_bytes_per_gpu), _gib(memory.kv_bytes_per_worker)
    return [
        *lines,
        f"  per GPU {share} = {_gib(budget)}",
        f"  - {spent}",
        f"  = KV memory {per_gpu} per GPU, {per_worker} per worker",
        f"  (reserves {memory.reserves_source})",
    ]


def _pool_lines(sizing: Sizing) -> list[str]:
    pool, request = sizing.pool, sizing.request
    if not pool.num_blocks:
        return ["  no room for a KV block"]
    tables = f" in {pool.num_block_tables} tables" if pool.num_block_tables > 1 else ""
    return [
        (
            f"  {pool.num_blocks:,} blocks of {pool.block_tokens} tokens; vLLM 0.19 would log "
            f"{pool.num_tokens:,} tokens"
        ),
        (
            f"  maximum concurrency for {request.longest_tokens:,} tokens per request: "
            f"{pool.max_concurrency:.2f}x"
        ),
        (
            f"  {pool.blocks_per_user:,} blocks per user{tables}: {pool.users_per_worker:,} users "
            "per worker"
        ),
    ]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
