"""What can happen to a running cluster, and the order of what is handled at one instant.

The order is that of the simulation (``sim.phases``): what ends before what begins.
"""

from typing import NamedTuple

from kvfabric.engine.executor_port import Sampling, StepOutput
from kvfabric.engine.messages import Hello


class GenerateRequest(NamedTuple):
    """A prompt, and how to go on from it.

    Attributes:
        request_id: unique for the life of the cluster.
        prompt_ids: its tokens, at least one.
        sampling: how tokens are chosen and when to stop.
        block_hashes: of the prompt, see ``block_hashes``; () to find nothing cached.
        namespace: see ``kvcache.block_keys.namespace_id``.
        hash_key: of ``block_hashes``, so that what is generated is found too; None: it is not.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    block_hashes: tuple[int, ...] = ()
    namespace: int = 0
    hash_key: bytes | None = None


class StepEnded(NamedTuple):
    """A worker has run its step."""

    worker_id: int
    output: StepOutput


class LayersReady(NamedTuple):
    """The KV cache of a worker's step is there in the first so many layers."""

    worker_id: int
    num_layers: int


class Transferred(NamedTuple):
    """All bytes of a transfer have arrived."""

    transfer_id: int


class WorkerLost(NamedTuple):
    """A worker is gone with all it held."""

    worker_id: int
    reason: str


class WorkerJoined(NamedTuple):
    """A worker is there, empty."""

    worker_id: int
    hello: Hello


class Cancelled(NamedTuple):
    """A client has given up."""

    request_id: int


class TransferLost(NamedTuple):
    """A transfer will not complete, as one of its sides says."""

    transfer_id: int


class DeadlinePassed(NamedTuple):
    """The next deadline of the control is over."""


class Arrived(NamedTuple):
    """A client asks."""

    request: GenerateRequest


Event = (
    StepEnded
    | Transferred
    | WorkerLost
    | WorkerJoined
    | LayersReady
    | Cancelled
    | TransferLost
    | DeadlinePassed
    | Arrived
)

_PHASES = {
    kind: phase
    for phase, kind in enumerate(
        (
            StepEnded,
            Transferred,
            WorkerLost,
            WorkerJoined,
            LayersReady,
            Cancelled,
            TransferLost,  # by the rule for a deadline, and just before those
            DeadlinePassed,
            Arrived,
        )
    )
}


def order(event: Event) -> tuple[int, ...]:
    """Return the key by which the events of one instant are sorted: kind, then id."""
    phase = _PHASES[type(event)]
    match event:
        case StepEnded(worker_id) | WorkerLost(worker_id) | WorkerJoined(worker_id):
            return phase, worker_id
        case LayersReady(worker_id, num_layers):
            return phase, worker_id, num_layers
        case Transferred(ident) | Cancelled(ident) | TransferLost(ident):
            return phase, ident
        case DeadlinePassed():
            return phase, 0
        case Arrived(request):
            return phase, request.request_id
