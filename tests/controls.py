"""The cluster's control alone, without workers or network, for tests that play both."""

from collections.abc import Callable
from typing import Any

from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    IncomingRequest,
    SendCommand,
    StartTransfer,
)
from kvfabric.serving.commands import Command, Prefilled
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.router import Router, RoutingPolicy

DEADLINE_NS = 1000


def first_rank_bytes(num_tokens: int) -> tuple[int, ...]:
    return (3 * num_tokens, 0)  # the second rank holds nothing to send


def control(
    *,
    num_prefill: int = 1,
    num_decode: int = 1,
    hash_tokens: int = 0,
    rank_bytes: Callable[[int], tuple[int, ...]] = first_rank_bytes,
    **settings: Any,
) -> Coordinator:
    """Return a control of workers with two GPUs each; ``settings`` go to its config."""
    num_workers = num_prefill + num_decode
    config = CoordinatorConfig(
        worker_gpus=tuple((2 * worker, 2 * worker + 1) for worker in range(num_workers)),
        num_decode=num_decode,
        block_size=4,
        hash_block_tokens=hash_tokens,
        max_model_len=100,
        rank_bytes=rank_bytes,
        handoff_deadline_ns=DEADLINE_NS,
        **settings,
    )
    router = Router(RoutingPolicy.ROUND_ROBIN, num_prefill=num_prefill, num_decode=num_decode)
    return Coordinator(config, router)


def incoming(
    request_id: int = 7, num_prompt_tokens: int = 10, hashes: tuple[int, ...] = ()
) -> IncomingRequest:
    return IncomingRequest(
        request_id=request_id,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=50,
        block_hashes=hashes,
    )


def commands(actions: list[Action]) -> list[tuple[int, Command]]:
    return [(a.worker, a.command) for a in actions if isinstance(a, SendCommand)]


def record_of(actions: list[Action]) -> RequestRecord:
    (record,) = [action.record for action in actions if isinstance(action, EndRequest)]
    return record


def started(actions: list[Action]) -> list[TransferPlan]:
    return [action.transfer for action in actions if isinstance(action, StartTransfer)]


def transfers(actions: list[Action]) -> list[int]:
    return [transfer.transfer_id for transfer in started(actions)]


def cancelled(actions: list[Action]) -> list[int]:
    return [action.transfer_id for action in actions if isinstance(action, CancelTransfer)]


def handed_off(control: Coordinator) -> None:
    """Bring request 7 to the end of its prefill at 100 ns."""
    control.arrive(incoming(), 0)
    control.on_worker_event(0, Prefilled(7, 20, 4), 100)
