"""Workers that die and come back: every request is started anew or failed, and counted."""

from typing import Any

import pytest
from controls import (
    DEADLINE_NS,
    cancelled,
    commands,
    control,
    handed_off,
    incoming,
    record_of,
    started,
    transfers,
)

from kvfabric.protocol.record import Outcome
from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.actions import Action
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Cancelled,
    Finished,
    FirstToken,
    Prefilled,
    PrefillStarted,
)
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import HandoffMode, Reservation
from kvfabric.serving.request import Goal


def added(actions: list[Action]) -> list[tuple[int, Goal]]:
    return [(w, c.goal) for w, c in commands(actions) if isinstance(c, AddRequest)]


def two_and_two(**settings: Any) -> Coordinator:
    """Return a control of prefill workers 0 and 1 and decode workers 2 and 3."""
    return control(num_prefill=2, num_decode=2, **settings)


def acknowledged(coordinator: Coordinator) -> None:
    """Bring request 7 from worker 0 to worker 2."""
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    coordinator.on_transferred(transfer_id, 200)


def test_request_on_a_dead_worker_starts_anew_on_another() -> None:
    coordinator = two_and_two()
    coordinator.arrive(incoming(), 0)
    actions = coordinator.on_worker_lost(0, 50)
    assert added(actions) == [(1, Goal.PREFILL)]
    assert len(actions) == 1
    assert coordinator.num_restarts == 1
    coordinator.check_invariants()


def test_aggregated_request_starts_anew_on_another_worker() -> None:
    coordinator = control(num_prefill=2, num_decode=0)
    coordinator.arrive(incoming(), 0)
    assert added(coordinator.on_worker_lost(0, 50)) == [(1, Goal.GENERATE)]


def test_requests_elsewhere_are_not_touched() -> None:
    coordinator = two_and_two()
    for request_id in (7, 8):
        coordinator.arrive(incoming(request_id), 0)
    assert [w for w, _ in commands(coordinator.on_worker_lost(1, 50))] == [0]
    assert coordinator.num_restarts == 1


def test_acknowledged_request_does_not_need_its_prefill_worker() -> None:
    coordinator = two_and_two()
    acknowledged(coordinator)
    assert coordinator.on_worker_lost(0, 250) == []


def test_death_of_the_source_stops_the_wire_and_frees_the_destination() -> None:
    coordinator = two_and_two()
    handed_off(coordinator)
    under_way = transfers(coordinator.on_reserved(7, 150))
    actions = coordinator.on_worker_lost(0, 180)
    assert cancelled(actions) == under_way
    assert commands(actions) == [(2, Cancel(7))]
    assert added(coordinator.on_worker_event(2, Cancelled(7), 180)) == [(1, Goal.PREFILL)]


def test_death_of_the_destination_frees_the_source_before_the_request_comes_back() -> None:
    # a step may still use the source's blocks: the id is free there once it says so
    coordinator = two_and_two(handoff=HandoffMode.LAYER_WISE)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    under_way = transfers(coordinator.on_layers_ready(7, KvPiece(0, 4, 0), 40))
    actions = coordinator.on_worker_lost(2, 50)
    assert cancelled(actions) == under_way
    assert commands(actions) == [(0, Cancel(7))]
    assert coordinator.on_layers_ready(7, KvPiece(4, 10, 0), 60) == []
    assert coordinator.on_worker_event(0, Prefilled(7, 20, 0), 60) == []
    assert coordinator.on_worker_event(2, Cancelled(7), 60) == []
    assert added(coordinator.on_worker_event(0, Cancelled(7), 60)) == [(1, Goal.PREFILL)]
    coordinator.check_invariants()


def test_death_while_decode_was_only_asked_frees_the_held_source() -> None:
    coordinator = two_and_two()
    handed_off(coordinator)
    actions = coordinator.on_worker_lost(2, 150)
    assert commands(actions) == [(0, Cancel(7))]
    assert coordinator.next_deadline_ns() is None


def test_decode_first_request_without_a_prefill_worker_yet_asks_another_decode_worker() -> None:
    coordinator = two_and_two(reservation=Reservation.DECODE_FIRST)
    coordinator.arrive(incoming(), 0)
    assert added(coordinator.on_worker_lost(2, 50)) == [(3, Goal.DECODE)]


def test_both_workers_of_a_hand_off_may_die() -> None:
    coordinator = two_and_two()
    handed_off(coordinator)
    coordinator.on_worker_lost(2, 150)
    assert added(coordinator.on_worker_lost(0, 150)) == [(1, Goal.PREFILL)]
    assert coordinator.num_restarts == 1  # it had not started again
    coordinator.check_invariants()


def test_cancel_while_the_survivor_lets_go_sends_no_second_cancel() -> None:
    coordinator = two_and_two()
    handed_off(coordinator)
    coordinator.on_worker_lost(2, 150)
    actions = coordinator.cancel(7, 160)
    assert commands(actions) == []
    assert record_of(actions).outcome is Outcome.ABORTED
    assert coordinator.on_worker_event(0, Cancelled(7), 170) == []


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_request_fails_after_its_last_restart(max_restarts: int) -> None:
    coordinator = control(num_prefill=2, num_decode=0, max_restarts=max_restarts)
    coordinator.arrive(incoming(), 0)
    for i in range(max_restarts):
        assert added(coordinator.on_worker_lost(i % 2, 10 * i))
        coordinator.on_worker_joined(i % 2, 10 * i)
    record = record_of(coordinator.on_worker_lost(max_restarts % 2, 90))
    assert (record.outcome, record.finished_ns) == (Outcome.FAILED, 90)
    assert record.num_restarts == max_restarts
    assert coordinator.counts[Outcome.FAILED] == 1
    coordinator.check_invariants()


def test_failed_request_frees_the_worker_that_survived() -> None:
    coordinator = two_and_two(max_restarts=0)
    handed_off(coordinator)
    under_way = transfers(coordinator.on_reserved(7, 150))
    actions = coordinator.on_worker_lost(0, 180)
    assert cancelled(actions) == under_way
    assert commands(actions) == [(2, Cancel(7))]
    assert record_of(actions).outcome is Outcome.FAILED
    assert coordinator.on_worker_event(2, Cancelled(7), 180) == []


def test_arrival_without_a_live_worker_fails() -> None:
    coordinator = control()
    coordinator.on_worker_lost(0, 10)
    actions = coordinator.arrive(incoming(), 20)
    assert (record_of(actions).outcome, len(actions)) == (Outcome.FAILED, 1)


def test_last_worker_of_a_kind_takes_its_requests_with_it() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    assert record_of(coordinator.on_worker_lost(0, 10)).outcome is Outcome.FAILED
    assert coordinator.is_drained


def test_prompt_that_is_computed_when_no_decode_worker_is_left_fails_and_frees_its_blocks() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_lost(1, 10)
    actions = coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100)
    assert commands(actions) == [(0, Cancel(7))]
    assert record_of(actions).outcome is Outcome.FAILED
    coordinator.check_invariants()


def test_worker_that_joined_again_is_used_again() -> None:
    coordinator = control()
    coordinator.on_worker_lost(0, 10)
    coordinator.on_worker_joined(0, 20)
    assert added(coordinator.arrive(incoming(), 30)) == [(0, Goal.PREFILL)]


# ---------------------------------------------------------------------- what the record says


def test_client_keeps_its_first_token_over_a_restart() -> None:
    coordinator = two_and_two()
    acknowledged(coordinator)
    coordinator.on_worker_event(2, FirstToken(7), 220)
    coordinator.on_worker_lost(2, 300)
    coordinator.on_worker_event(1, Prefilled(7, 320, 8), 400)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 410))
    coordinator.on_transferred(transfer_id, 450)
    coordinator.on_worker_event(3, FirstToken(7), 470)
    record = record_of(coordinator.on_worker_event(3, Finished(7, 5, 0), 500))
    assert (record.routed_ns, record.prefill_start_ns, record.prefill_end_ns) == (0, 20, 100)
    assert (record.reserved_ns, record.transferred_ns, record.first_token_ns) == (150, 200, 220)
    assert (record.num_cached_tokens, record.num_output_tokens) == (4, 5)
    assert (record.transfer_bytes, record.num_restarts) == (60, 1)


def test_attempt_that_gave_no_token_is_forgotten_but_for_its_bytes() -> None:
    coordinator = two_and_two()
    acknowledged(coordinator)
    coordinator.on_worker_lost(2, 300)
    ((*_, record),) = [coordinator.unfinished()]
    assert (record.routed_ns, record.prefill_start_ns, record.transferred_ns) == (300, None, None)
    assert record.transfer_bytes == 30


def test_lease_of_an_attempt_that_failed_does_not_end_the_next() -> None:
    coordinator = two_and_two()
    handed_off(coordinator)
    coordinator.on_worker_lost(2, 150)
    coordinator.on_worker_event(0, Cancelled(7), 150)
    coordinator.on_worker_event(1, Prefilled(7, 160, 0), 500)
    assert coordinator.expire(100 + DEADLINE_NS) == []
    assert coordinator.next_deadline_ns() == 500 + DEADLINE_NS
    assert started(coordinator.on_reserved(7, 600))
