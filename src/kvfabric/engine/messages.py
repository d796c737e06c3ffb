"""What the control process and a worker tell each other; how it is written stands in ``wire``."""

from typing import NamedTuple

from kvfabric.engine.admission import Limits
from kvfabric.engine.executor_port import EngineStep, StepOutput


class SendBlocks(NamedTuple):
    """Send the KV cache of whole blocks to another worker, which has been told to expect them.

    Attributes:
        transfer_id: names the transfer on both sides; the sender knows no other address.
        peer: data address of the receiver, from its ``Hello``.
        block_ids: in the order of the prompt.
    """

    transfer_id: int
    peer: str
    block_ids: tuple[int, ...]


class ExpectBlocks(NamedTuple):
    """Write what a transfer brings into these blocks, as many as the sender sends."""

    transfer_id: int
    block_ids: tuple[int, ...]


class CancelBlocks(NamedTuple):
    """Stop a transfer; once this is handled, no byte of it is written any more."""

    transfer_id: int


class Stop(NamedTuple):
    """End the worker."""


ToWorker = EngineStep | SendBlocks | ExpectBlocks | CancelBlocks | Stop


class Hello(NamedTuple):
    """What a worker says first.

    Attributes:
        model: digest of weights, dtype, block size and KV layout; equal in all workers.
        num_blocks: KV blocks it has, the null block included.
        block_bytes: KV bytes of one block, all layers.
        address: where other workers reach it with KV blocks.
        limits: of the model; None if there are none that matter.
    """

    model: str
    num_blocks: int
    block_bytes: int
    address: str
    limits: Limits | None = None


class TransferDone(NamedTuple):
    """All bytes of a transfer are in their blocks; told by the receiver."""

    transfer_id: int


class TransferFailed(NamedTuple):
    """A transfer will not complete; told by either side."""

    transfer_id: int
    reason: str


class WorkerFailed(NamedTuple):
    """The worker cannot go on; it ends after this."""

    reason: str


FromWorker = Hello | StepOutput | TransferDone | TransferFailed | WorkerFailed
