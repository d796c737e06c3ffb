"""The cluster's control: routing, hand-offs and how every request ends."""

import pytest
from controls import DEADLINE_NS, commands, control, handed_off, incoming, record_of, transfers

from kvfabric.errors import ConfigError
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.serving.actions import CancelTransfer, StartTransfer
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    ReleaseHeld,
)
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.request import Goal


def test_arrival_is_sent_to_a_prefill_worker_with_its_limit() -> None:
    ((worker, command),) = commands(control().arrive(incoming(), 0))
    assert worker == 0
    assert isinstance(command, AddRequest)
    assert (command.goal, command.max_tokens) == (Goal.PREFILL, 50)


def test_limit_is_what_the_model_length_leaves() -> None:
    ((_, command),) = commands(control().arrive(incoming(num_prompt_tokens=90), 0))
    assert isinstance(command, AddRequest)
    assert command.max_tokens == 10


def test_aggregated_worker_generates() -> None:
    ((_, command),) = commands(control(num_decode=0).arrive(incoming(), 0))
    assert isinstance(command, AddRequest)
    assert command.goal is Goal.GENERATE


def test_prompt_without_room_for_a_token_is_rejected() -> None:
    coordinator = control()
    actions = coordinator.arrive(incoming(num_prompt_tokens=100), 5)
    assert record_of(actions).outcome is Outcome.REJECTED
    assert coordinator.is_drained
    coordinator.check_invariants()


def test_hash_that_blocks_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        control(hash_tokens=10).arrive(incoming(hashes=(1,)), 0)


def test_end_of_prefill_asks_the_decode_worker_for_blocks() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    ((worker, command),) = commands(coordinator.on_worker_event(0, Prefilled(7, 20, 4), 100))
    assert worker == 1
    assert isinstance(command, AddRequest)
    assert command.goal is Goal.DECODE


def test_bytes_move_only_after_blocks_are_reserved() -> None:
    coordinator = control()
    handed_off(coordinator)
    (action,) = coordinator.on_reserved(7, 150)
    assert isinstance(action, StartTransfer)
    assert action.transfer.num_bytes == 30


def test_rank_sends_to_its_own_rank_and_empty_parts_are_left_out() -> None:
    coordinator = control()
    handed_off(coordinator)
    (action,) = coordinator.on_reserved(7, 150)
    assert isinstance(action, StartTransfer)
    assert action.transfer.parts == (RankTransfer(0, 2, 30),)


def test_arrival_of_the_bytes_releases_the_source_and_starts_the_destination() -> None:
    coordinator = control()
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    actions = coordinator.on_transferred(transfer_id, 300)
    assert commands(actions) == [(0, ReleaseHeld(7)), (1, KvArrived(7))]


def test_record_keeps_every_instant() -> None:
    coordinator = control()
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    coordinator.on_transferred(transfer_id, 300)
    coordinator.on_worker_event(1, FirstToken(7), 320)
    record = record_of(coordinator.on_worker_event(1, Finished(7, 5, 1), 400))
    assert record == RequestRecord(
        request_id=7,
        outcome=Outcome.FINISHED,
        arrival_ns=0,
        routed_ns=0,
        prefill_start_ns=20,
        prefill_end_ns=100,
        reserved_ns=150,
        transferred_ns=300,
        first_token_ns=320,
        finished_ns=400,
        num_prompt_tokens=10,
        num_output_tokens=5,
        num_cached_tokens=4,
        num_preemptions=1,
        transfer_bytes=30,
    )


def test_aggregated_first_token_comes_with_the_end_of_prefill() -> None:
    coordinator = control(num_decode=0)
    coordinator.arrive(incoming(), 0)
    assert coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100) == []
    record = record_of(coordinator.on_worker_event(0, Finished(7, 3, 0), 130))
    assert (record.reserved_ns, record.transferred_ns, record.first_token_ns) == (100, 100, 100)


# ---------------------------------------------------------------------- giving up


def test_cancel_before_the_hand_off_tells_the_worker_that_has_it() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    actions = coordinator.cancel(7, 50)
    assert commands(actions) == [(0, Cancel(7))]
    assert record_of(actions).outcome is Outcome.ABORTED
    assert record_of(actions).finished_ns == 50


def test_cancel_before_bytes_move_tells_both_workers() -> None:
    coordinator = control()
    handed_off(coordinator)
    actions = coordinator.cancel(7, 150)
    assert commands(actions) == [(0, Cancel(7)), (1, Cancel(7))]
    assert not any(isinstance(action, CancelTransfer) for action in actions)


def test_cancel_while_bytes_move_stops_them() -> None:
    coordinator = control()
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    actions = coordinator.cancel(7, 200)
    assert actions[0] == CancelTransfer(transfer_id)
    assert commands(actions) == [(0, Cancel(7)), (1, Cancel(7))]


def test_cancel_after_the_hand_off_tells_only_the_decode_worker() -> None:
    coordinator = control()
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    coordinator.on_transferred(transfer_id, 300)
    assert commands(coordinator.cancel(7, 310)) == [(1, Cancel(7))]


def test_cancel_of_an_ended_request_is_left_alone() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    coordinator.cancel(7, 50)
    assert coordinator.cancel(7, 60) == []
    assert coordinator.counts[Outcome.ABORTED] == 1


def test_news_of_an_ended_request_is_ignored() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    coordinator.cancel(7, 50)
    assert coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100) == []
    assert coordinator.next_deadline_ns() is None


def test_hand_off_is_given_up_at_its_deadline() -> None:
    # https://github.com/vllm-project/vllm/issues/46283: blocks come back after the lease
    coordinator = control()
    handed_off(coordinator)
    assert coordinator.next_deadline_ns() == 100 + DEADLINE_NS
    assert coordinator.expire(99 + DEADLINE_NS) == []
    actions = coordinator.expire(100 + DEADLINE_NS)
    assert commands(actions) == [(0, Cancel(7)), (1, Cancel(7))]
    assert record_of(actions).outcome is Outcome.ABORTED


def test_hand_off_that_is_over_has_no_deadline() -> None:
    coordinator = control()
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    coordinator.on_transferred(transfer_id, 300)
    assert coordinator.next_deadline_ns() is None
    assert coordinator.expire(10 * DEADLINE_NS) == []


def test_every_expired_hand_off_is_given_up_at_once() -> None:
    coordinator = control()
    for request_id in (1, 2, 3):
        coordinator.arrive(incoming(request_id), 0)
        coordinator.on_worker_event(0, Prefilled(request_id, 20, 0), 100)
    coordinator.expire(100 + DEADLINE_NS)
    assert coordinator.is_drained
    coordinator.check_invariants()


def test_bytes_that_arrive_after_the_hand_off_was_given_up_are_refused() -> None:
    coordinator = control()
    handed_off(coordinator)
    (transfer_id,) = transfers(coordinator.on_reserved(7, 150))
    coordinator.cancel(7, 200)
    with pytest.raises(KeyError):
        coordinator.on_transferred(transfer_id, 300)


def test_every_transfer_has_its_own_id() -> None:
    coordinator = control()
    seen: list[int] = []
    for request_id in (7, 8, 9):
        coordinator.arrive(incoming(request_id), 0)
        coordinator.on_worker_event(0, Prefilled(request_id, 20, 0), 100)
        seen += transfers(coordinator.on_reserved(request_id, 150))
    assert len(set(seen)) == 3


def test_ranks_send_to_the_ranks_they_are_paired_with() -> None:
    coordinator = control(rank_pairs=((0, 0), (0, 1), (1, 1)), rank_bytes=lambda n: (n, 2 * n, n))
    handed_off(coordinator)
    (action,) = coordinator.on_reserved(7, 150)
    assert isinstance(action, StartTransfer)
    assert action.transfer.parts == (
        RankTransfer(0, 2, 10),
        RankTransfer(0, 3, 20),
        RankTransfer(1, 3, 10),
    )


def test_setting_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_layer_groups is 0"):
        control(num_layer_groups=0)
    with pytest.raises(ConfigError, match="max_restarts is -1"):
        control(max_restarts=-1)


def test_settings_default_to_whole_prompts_after_prefill() -> None:
    config = CoordinatorConfig(
        worker_gpus=((0,), (1,)),
        num_decode=1,
        block_size=4,
        hash_block_tokens=0,
        max_model_len=100,
        rank_bytes=lambda n: (n,),
        handoff_deadline_ns=DEADLINE_NS,
    )
    assert (config.reservation.value, config.handoff.value) == ("prefill_first", "whole_prompt")


def test_unfinished_requests_are_told_without_ending_them() -> None:
    coordinator = control()
    coordinator.arrive(incoming(), 0)
    (record,) = coordinator.unfinished()
    assert record.outcome is Outcome.UNFINISHED
    assert coordinator.num_in_flight == 1


def test_requests_in_flight_and_ended_add_up_to_those_that_arrived() -> None:
    coordinator = control()
    for request_id, tokens in ((1, 10), (2, 100), (3, 10)):
        coordinator.arrive(incoming(request_id, tokens), 0)
    coordinator.cancel(1, 5)
    assert coordinator.num_arrived == 3
    assert coordinator.num_in_flight + sum(coordinator.counts.values()) == 3
    coordinator.check_invariants()
