"""Decode blocks reserved on arrival: prefill starts only once they are there."""

import pytest
from controls import cancelled, commands, control, incoming, record_of, started, transfers

from kvfabric.protocol.record import Outcome
from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    ReleaseHeld,
)
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import Reservation
from kvfabric.serving.request import Goal


def decode_first(num_prefill: int = 1) -> Coordinator:
    return control(reservation=Reservation.DECODE_FIRST, num_prefill=num_prefill)


def test_arrival_asks_only_the_decode_worker() -> None:
    ((worker, command),) = commands(decode_first().arrive(incoming(), 0))
    assert worker == 1
    assert isinstance(command, AddRequest)
    assert (command.goal, command.num_prompt_tokens) == (Goal.DECODE, 10)


def test_prefill_worker_gets_the_request_once_blocks_are_reserved() -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    ((worker, command),) = commands(coordinator.on_reserved(7, 40))
    assert worker == 0
    assert isinstance(command, AddRequest)
    assert (command.goal, command.max_tokens) == (Goal.PREFILL, 50)


def test_whole_prompt_moves_at_the_end_of_prefill() -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    coordinator.on_reserved(7, 40)
    (transfer,) = started(coordinator.on_worker_event(0, Prefilled(7, 50, 0), 100))
    assert transfer.num_bytes == 30
    actions = coordinator.on_transferred(transfer.transfer_id, 130)
    assert commands(actions) == [(0, ReleaseHeld(7)), (1, KvArrived(7))]


def test_record_has_blocks_reserved_before_prefill() -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    coordinator.on_reserved(7, 40)
    (transfer_id,) = transfers(coordinator.on_worker_event(0, Prefilled(7, 50, 0), 100))
    coordinator.on_transferred(transfer_id, 130)
    coordinator.on_worker_event(1, FirstToken(7), 140)
    record = record_of(coordinator.on_worker_event(1, Finished(7, 3, 0), 170))
    assert (record.routed_ns, record.reserved_ns, record.prefill_start_ns) == (0, 40, 50)
    assert (record.prefill_end_ns, record.transferred_ns) == (100, 130)


@pytest.mark.parametrize("is_reserved", [False, True])
def test_cancel_before_the_end_of_prefill_frees_both_sides(is_reserved: bool) -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    if is_reserved:
        coordinator.on_reserved(7, 40)
    actions = coordinator.cancel(7, 50)
    workers = [0, 1] if is_reserved else [1]
    assert commands(actions) == [(worker, Cancel(7)) for worker in workers]
    assert not cancelled(actions)
    coordinator.check_invariants()


def test_wait_for_decode_blocks_has_no_deadline_as_nothing_is_held_for_it() -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    assert coordinator.next_deadline_ns() is None
    coordinator.on_reserved(7, 40)
    assert coordinator.next_deadline_ns() is None


def test_reserved_without_a_live_prefill_worker_fails_and_frees_the_blocks() -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_lost(0, 10)
    actions = coordinator.on_reserved(7, 40)
    assert commands(actions) == [(1, Cancel(7))]
    assert record_of(actions).outcome is Outcome.FAILED


def test_whole_prompt_does_not_move_before_all_of_it_is_computed() -> None:
    coordinator = decode_first()
    coordinator.arrive(incoming(), 0)
    coordinator.on_reserved(7, 40)
    assert coordinator.on_layers_ready(7, KvPiece(0, 10, 0), 60) == []
