"""What the control process and a worker tell each other; how it is written stands in ``wire``."""

from typing import NamedTuple

from kvfabric.engine.admission import Limits
from kvfabric.engine.executor_port import EngineStep, StepOutput
from kvfabric.engine.transport.port import Piece


class SendBlocks(NamedTuple):
    """Send the KV cache of whole blocks to another worker, which has been told to expect them.

    Attributes:
        transfer_id: names the transfer on both sides; the sender knows no other address.
        peer: data address of the receiver, from its ``Hello``.
        pieces: blocks in the order of the prompt, of some layers each.
    """

    transfer_id: int
    peer: str
    pieces: tuple[Piece, ...]


class ExpectBlocks(NamedTuple):
    """Write what a transfer brings into these blocks: pieces as the sender's, with other blocks."""

    transfer_id: int
    pieces: tuple[Piece, ...]


class CancelBlocks(NamedTuple):
    """Stop a transfer; once this is handled, no byte of it is written any more."""

    transfer_id: int


class Stop(NamedTuple):
    """End the worker."""


class Refused(NamedTuple):
    """The worker does not fit to the others; it ends after this."""

    reason: str


ToWorker = EngineStep | SendBlocks | ExpectBlocks | CancelBlocks | Stop | Refused


class Hello(NamedTuple):
    """What a worker says first.

    Attributes:
        model: digest of weights, dtype, block size and KV layout; equal in all workers.
        num_blocks: KV blocks it has, the null block included.
        block_bytes: KV bytes of one block, all layers.
        address: where other workers reach it with KV blocks.
        limits: of the model; None if there are none that matter.
        num_layers: of its KV cache.
    """

    model: str
    num_blocks: int
    block_bytes: int
    address: str
    limits: Limits | None = None
    num_layers: int = 1


class LayersComputed(NamedTuple):
    """The KV cache of the step that runs is there in the first so many layers."""

    num_layers: int


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


FromWorker = Hello | LayersComputed | StepOutput | TransferDone | TransferFailed | WorkerFailed
