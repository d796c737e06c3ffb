"""Which executor a worker process makes; plain values, so that they can be passed to it."""

import mmap
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from kvfabric.engine.admission import Limits
from kvfabric.engine.executor_port import EngineStep, Executor
from kvfabric.engine.fake_executor import VOCAB_SIZE, FakeExecutor
from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.block_memory import CopiedBlocks, PooledBlocks
from kvfabric.engine.transport.pool_shape import PoolPart, PoolShape, pool_shape_of
from kvfabric.engine.transport.port import BlockMemory
from kvfabric.engine.transport.shared_pool import SharedPool, make_shared_pool

FAKE = "fake"
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """An executor to be made.

    Attributes:
        model: ``fake``, or a name for ``model_sources.open_model``.
        num_blocks: of its KV cache, the null block included.
        block_size: tokens per block.
        dtype: of weights and computation.
        kv_dtype: ``int8``, or None for that of the weights.
        device: for torch.
        num_threads: for torch; None leaves it alone.
        fake_step_ns: how long a step of the fake one takes.
    """

    model: str
    num_blocks: int
    block_size: int
    dtype: str = "bfloat16"
    kv_dtype: str | None = None
    device: str = "cpu"
    num_threads: int | None = None
    fake_step_ns: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for ``ExecutorSpec(**fields)``."""
        return asdict(self)


class MadeExecutor(NamedTuple):
    """An executor, and what others have to know of it.

    Attributes:
        layout: of its KV cache.
        model: digest of its weights.
        limits: of the model.
        memory: where transports find its blocks.
        pool: what ``memory`` lies in, if peers of this host may map it.
    """

    executor: Executor
    layout: KvLayout
    model: str
    limits: Limits
    memory: BlockMemory
    pool: SharedPool | None = None


class _Memory(NamedTuple):
    """Zeros for a KV cache on the CPU."""

    bytes: memoryview
    pool: SharedPool | None


def make_executor(spec: ExecutorSpec, *, is_shared: bool = False) -> MadeExecutor:
    """Load the model and allocate the KV cache.

    Args:
        spec: what to make.
        is_shared: let peers of this host map the KV cache, where the system and the device can.

    Raises:
        ConfigError: the model is not there or cannot be run.
        MemoryError: there is no room for the KV cache.
    """
    return _fake(spec, is_shared) if spec.model == FAKE else _torch(spec, is_shared)


def _memory(shape: PoolShape, is_shared: bool) -> _Memory:
    pool = make_shared_pool(shape) if is_shared else None
    if pool is not None:
        return _Memory(pool.memory, pool)
    try:
        own = mmap.mmap(-1, shape.num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise MemoryError(f"no room for a KV cache of {shape.num_bytes} bytes") from None
    return _Memory(memoryview(own), None)


def _fake(spec: ExecutorSpec, is_shared: bool) -> MadeExecutor:
    def step_ns(step: EngineStep) -> int:
        return spec.fake_step_ns if step.scheduled else 0

    layout = KvLayout(
        num_layers=2,
        block_size=spec.block_size,
        num_kv_heads=1,
        head_dim=1,
        kv_dtype="float32",  # K and V together are its 8 bytes per token and layer
    )
    part = PoolPart(1, layout.block_bytes_per_layer)  # its K and V are one number
    shape = PoolShape(num_layers=layout.num_layers, num_blocks=spec.num_blocks, parts=(part,))
    memory = _memory(shape, is_shared)
    executor = FakeExecutor(
        spec.num_blocks,
        spec.block_size,
        num_layers=layout.num_layers,
        step_ns=step_ns if spec.fake_step_ns else None,
        memory=memory.bytes,
    )
    limits = Limits(_NO_LIMIT, VOCAB_SIZE)
    blocks = PooledBlocks(memory.bytes, shape)
    return MadeExecutor(executor, layout, FAKE, limits, blocks, memory.pool)


def _torch(spec: ExecutorSpec, is_shared: bool) -> MadeExecutor:
    # Only those who run a model have torch.
    import torch  # noqa: PLC0415

    from kvfabric.engine.model_sources import open_model  # noqa: PLC0415
    from kvfabric.engine.torch_executor import TorchExecutor, kv_layout_of  # noqa: PLC0415
    from kvfabric.engine.weights import weights_digest  # noqa: PLC0415

    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    source = open_model(spec.model)
    weights = source.load_weights(spec.dtype, spec.device)
    layout = kv_layout_of(source.spec, weights, spec.block_size, spec.kv_dtype)
    shape = pool_shape_of(layout, spec.num_blocks)
    is_on_cpu = weights.embedding.device.type == "cpu"
    memory = _memory(shape, is_shared) if is_on_cpu else None
    executor = TorchExecutor(
        source.spec,
        weights,
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        kv_dtype=spec.kv_dtype,
        decode_text=source.tokenizer().decode,
        memory=None if memory is None else memory.bytes,
    )
    limits = Limits(source.spec.max_positions, source.spec.vocab_size)
    digest = weights_digest(weights)
    if memory is None:
        return MadeExecutor(executor, layout, digest, limits, CopiedBlocks(executor, layout))
    blocks = PooledBlocks(memory.bytes, shape)
    return MadeExecutor(executor, layout, digest, limits, blocks, memory.pool)
