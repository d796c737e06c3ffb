"""What the cluster's control is asked for by clients, and what it answers its driver with.

What a driver does, beyond carrying out actions in their order:

- Layer-wise hand-offs (``num_layer_groups`` above 0): it passes on ``PrefillStarted``, divides the
  duration of a step with prefill chunks into ``num_layer_groups`` equal parts, and at the end of
  part g calls ``on_layers_ready`` with the tokens of each chunk and group g; the last part before
  it completes the step. What it has not reported moves at the end of the prefill, so that a driver
  that reports nothing is slower, not wrong.
- A prefix is fetched: it carries out ``StartRead`` on the memory tier named, ``StartTransfer`` on
  the network, and reports both by ``on_transferred``. Where such an action is ``awaited_by`` a
  request, the step with the first chunk of its prompt is not complete before that, or before it is
  cancelled. It passes on ``Decision.reserved``: the prompt tokens whose blocks were found in HBM.
- A worker dies: it drops the worker's scheduler, executor and pending events, then calls
  ``on_worker_lost``. No action that follows names the worker, and no event of it is passed on. When
  the worker is back, with a new scheduler and executor, it calls ``on_worker_joined``.
"""

from dataclasses import dataclass
from typing import Final

from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.serving.commands import Command


@dataclass(slots=True, init=False)
class IncomingRequest:
    """A request as a client sends it: no output length (INV-9)."""

    request_id: Final[int]
    num_prompt_tokens: Final[int]
    max_tokens: Final[int]
    block_hashes: Final[tuple[int, ...]]
    namespace: Final[int]

    def __init__(
        self,
        request_id: int,
        num_prompt_tokens: int,
        max_tokens: int,
        block_hashes: tuple[int, ...],
        namespace: int = 0,
    ) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.block_hashes = block_hashes
        self.namespace = namespace


@dataclass(slots=True, init=False)
class SendCommand:
    """Pass a command to a worker's scheduler."""

    worker: Final[int]
    command: Final[Command]

    def __init__(self, worker: int, command: Command) -> None:
        """Set the fields."""
        self.worker = worker
        self.command = command


@dataclass(slots=True, init=False)
class StartTransfer:
    """Let the network move bytes of a hand-off, or of a prefix.

    ``awaited_by`` is the request whose first step of its prompt ends no sooner.
    """

    transfer: Final[TransferPlan]
    awaited_by: Final[int | None]

    def __init__(self, transfer: TransferPlan, awaited_by: int | None = None) -> None:
        """Set the fields."""
        self.transfer = transfer
        self.awaited_by = awaited_by


@dataclass(frozen=True, slots=True)
class StartRead:
    """Read bytes of a prefix from the host memory of the worker's server, or from storage.

    Attributes:
        transfer_id: as of transfers; ``CancelTransfer`` cancels it.
        place: a server, or ``kvcache.tiers.STORAGE``.
        num_bytes: on all ranks.
        awaited_by: the request whose first step of its prompt ends no sooner.
    """

    transfer_id: int
    place: int
    num_bytes: int
    awaited_by: int | None = None


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Stop moving or reading bytes."""

    transfer_id: int


@dataclass(slots=True, init=False)
class EndRequest:
    """A request is over; this is its record."""

    record: Final[RequestRecord]

    def __init__(self, record: RequestRecord) -> None:
        """Set the fields."""
        self.record = record


Action = SendCommand | StartTransfer | StartRead | CancelTransfer | EndRequest
