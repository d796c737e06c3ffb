"""Which executor a worker process makes; plain values, so that they can be passed to it."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from kvfabric.engine.admission import Limits
from kvfabric.engine.executor_port import EngineStep, Executor
from kvfabric.engine.fake_executor import VOCAB_SIZE, FakeExecutor
from kvfabric.engine.kv_layout import KvLayout

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
    """An executor, the layout of its KV cache, a digest of its model, and its limits."""

    executor: Executor
    layout: KvLayout
    model: str
    limits: Limits


def make_executor(spec: ExecutorSpec) -> MadeExecutor:
    """Load the model and allocate the KV cache.

    Raises:
        ConfigError: the model is not there or cannot be run.
    """
    return _fake(spec) if spec.model == FAKE else _torch(spec)


def _fake(spec: ExecutorSpec) -> MadeExecutor:
    def step_ns(step: EngineStep) -> int:
        return spec.fake_step_ns if step.scheduled else 0

    layout = KvLayout(
        num_layers=2,
        block_size=spec.block_size,
        num_kv_heads=1,
        head_dim=1,
        kv_dtype="float32",  # K and V together are its 8 bytes per token and layer
    )
    executor = FakeExecutor(
        spec.num_blocks,
        spec.block_size,
        num_layers=layout.num_layers,
        step_ns=step_ns if spec.fake_step_ns else None,
    )
    return MadeExecutor(executor, layout, FAKE, Limits(_NO_LIMIT, VOCAB_SIZE))


def _torch(spec: ExecutorSpec) -> MadeExecutor:
    # Only those who run a model have torch.
    import torch  # noqa: PLC0415

    from kvfabric.engine.model_sources import open_model  # noqa: PLC0415
    from kvfabric.engine.torch_executor import TorchExecutor  # noqa: PLC0415
    from kvfabric.engine.weights import weights_digest  # noqa: PLC0415

    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    source = open_model(spec.model)
    weights = source.load_weights(spec.dtype, spec.device)
    executor = TorchExecutor(
        source.spec,
        weights,
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        kv_dtype=spec.kv_dtype,
        decode_text=source.tokenizer().decode,
    )
    limits = Limits(source.spec.max_positions, source.spec.vocab_size)
    return MadeExecutor(executor, executor.kv.layout, weights_digest(weights), limits)
