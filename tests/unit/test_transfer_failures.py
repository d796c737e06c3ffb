"""A transfer that fails ends its hand-off at once, by the rule for one past its deadline."""

from collections.abc import Callable

import pytest
from controls import cancelled, commands, control, handed_off, incoming, record_of, transfers

from kvfabric.protocol.record import Outcome
from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.actions import Action
from kvfabric.serving.commands import AddRequest, Cancel, Finished, Prefilled, PrefillStarted
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import HandoffMode, OnExpiry, Reservation
from kvfabric.serving.request import Goal

Made = Callable[[OnExpiry], tuple[Coordinator, int]]
BOTH = [(0, Cancel(7)), (1, Cancel(7))]


def whole_prompt(on_expiry: OnExpiry) -> tuple[Coordinator, int]:
    coordinator = control(on_expiry=on_expiry)
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    return coordinator, transfer_id


def decode_first(on_expiry: OnExpiry) -> tuple[Coordinator, int]:
    coordinator = control(on_expiry=on_expiry, reservation=Reservation.DECODE_FIRST)
    coordinator.arrive(incoming(), 0)
    coordinator.on_reserved(7, 40)
    (transfer_id,) = transfers(coordinator.on_worker_event(0, Prefilled(7, 50, 0), 100))
    return coordinator, transfer_id


def streamed(on_expiry: OnExpiry) -> tuple[Coordinator, int]:
    """Bring request 7 to where a piece moves and the rest of its prompt is computed."""
    coordinator = control(on_expiry=on_expiry, handoff=HandoffMode.LAYER_WISE)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    (transfer_id,) = transfers(coordinator.on_layers_ready(7, KvPiece(0, 4, 0), 40))
    return coordinator, transfer_id


@pytest.mark.parametrize("made", [whole_prompt, decode_first, streamed])
def test_failure_aborts_and_frees_both_sides(made: Made) -> None:
    coordinator, transfer_id = made(OnExpiry.FAIL)
    actions = coordinator.on_transfer_failed(transfer_id, 200)
    assert cancelled(actions) == [transfer_id]  # the other side may not know
    assert commands(actions) == BOTH
    assert record_of(actions).outcome is Outcome.ABORTED
    assert (coordinator.num_broken, coordinator.num_expired) == (1, 0)
    assert coordinator.next_deadline_ns() is None
    assert coordinator.is_drained
    coordinator.check_invariants()


def assert_recomputed(
    coordinator: Coordinator, actions: list[Action], under_way: list[int]
) -> None:
    assert cancelled(actions) == under_way
    *released, (worker, command) = commands(actions)
    assert released == BOTH
    assert worker == 1
    assert isinstance(command, AddRequest)
    assert command.goal is Goal.GENERATE
    assert (coordinator.num_broken, coordinator.num_expired) == (1, 0)
    assert coordinator.next_deadline_ns() is None
    coordinator.check_invariants()
    assert coordinator.on_worker_event(1, Prefilled(7, 300, 0), 400) == []
    record = record_of(coordinator.on_worker_event(1, Finished(7, 5, 0), 500))
    assert (record.outcome, record.num_restarts) == (Outcome.FINISHED, 0)


@pytest.mark.parametrize("made", [whole_prompt, decode_first])
def test_failure_lets_the_decode_worker_recompute(made: Made) -> None:
    coordinator, transfer_id = made(OnExpiry.RECOMPUTE)
    actions = coordinator.on_transfer_failed(transfer_id, 200)
    assert_recomputed(coordinator, actions, [transfer_id])


def test_failed_piece_stops_the_stream_and_the_source_finishes_its_prompt() -> None:
    coordinator, transfer_id = streamed(OnExpiry.RECOMPUTE)
    assert coordinator.on_transfer_failed(transfer_id, 50) == []
    assert coordinator.on_layers_ready(7, KvPiece(4, 8, 0), 60) == []
    coordinator.check_invariants()
    actions = coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100)
    assert_recomputed(coordinator, actions, [transfer_id])


def test_piece_that_failed_at_one_side_and_arrived_at_the_other_has_failed() -> None:
    coordinator, transfer_id = streamed(OnExpiry.RECOMPUTE)
    coordinator.on_transfer_failed(transfer_id, 50)
    assert coordinator.on_transferred(transfer_id, 60) == []
    actions = coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100)
    assert_recomputed(coordinator, actions, [])


def test_decode_worker_that_dies_with_a_failed_piece_starts_the_request_anew_once() -> None:
    coordinator, transfer_id = streamed(OnExpiry.RECOMPUTE)
    coordinator.on_transfer_failed(transfer_id, 50)  # a dead peer: its connection goes first
    actions = coordinator.on_worker_lost(1, 60)
    assert cancelled(actions) == [transfer_id]
    assert commands(actions) == [(0, Cancel(7))]  # which has to let go before it gets 7 again
    assert coordinator.num_restarts == 1
    coordinator.check_invariants()


@pytest.mark.parametrize("on_expiry", OnExpiry)
@pytest.mark.parametrize("made", [whole_prompt, decode_first, streamed])
def test_failure_of_what_is_not_under_way_is_harmless(made: Made, on_expiry: OnExpiry) -> None:
    coordinator, transfer_id = made(on_expiry)
    assert coordinator.on_transfer_failed(transfer_id + 1, 200) == []
    coordinator.cancel(7, 210)
    assert coordinator.on_transfer_failed(transfer_id, 220) == []
    assert coordinator.num_broken == 0
    coordinator.check_invariants()


def test_both_sides_may_tell_of_one_failure() -> None:
    coordinator, transfer_id = whole_prompt(OnExpiry.RECOMPUTE)
    assert coordinator.on_transfer_failed(transfer_id, 200)
    assert coordinator.on_transfer_failed(transfer_id, 201) == []
    assert coordinator.num_broken == 1


def test_failure_after_the_hand_off_is_harmless() -> None:
    coordinator, transfer_id = whole_prompt(OnExpiry.FAIL)
    coordinator.on_transferred(transfer_id, 200)
    assert coordinator.on_transfer_failed(transfer_id, 210) == []
    assert coordinator.num_in_flight == 1
