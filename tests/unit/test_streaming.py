"""Layer-wise hand-offs: KV cache moves behind the prefill, piece by piece."""

from fractions import Fraction

import pytest
from controls import commands, control, incoming, record_of, started, transfers
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.commands import (
    AddRequest,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    PrefillStarted,
    ReleaseHeld,
)
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import HandoffMode, Reservation
from kvfabric.serving.request import Goal
from kvfabric.serving.streaming import LayerStream

TOKEN_BYTES = 12


def rank_bytes(num_tokens: int) -> tuple[int, ...]:
    return (TOKEN_BYTES * num_tokens, 5 * num_tokens)


def streaming(num_groups: int = 2, *, is_decode_first: bool = False) -> Coordinator:
    return control(
        handoff=HandoffMode.LAYER_WISE,
        num_layer_groups=num_groups,
        reservation=Reservation.DECODE_FIRST if is_decode_first else Reservation.PREFILL_FIRST,
        rank_bytes=rank_bytes,
    )


def moved(*pieces: KvPiece, cached: int = 0) -> list[int]:
    """Return the bytes that each piece starts after 7 is reserved and its prefill has begun."""
    coordinator = streaming()
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, cached), 20)
    actions = [coordinator.on_reserved(7, 30)]
    actions += [coordinator.on_layers_ready(7, piece, 40) for piece in pieces]
    actions.append(coordinator.on_worker_event(0, Prefilled(7, 20, cached), 100))
    return [sum(transfer.num_bytes for transfer in started(each)) for each in actions]


def test_driver_reports_layers_only_where_they_are_streamed() -> None:
    assert streaming(3).num_layer_groups == 3
    assert control().num_layer_groups == 0
    assert (
        control(num_decode=0, num_prefill=2, handoff=HandoffMode.LAYER_WISE).num_layer_groups == 0
    )


def test_decode_worker_is_asked_when_prefill_starts() -> None:
    coordinator = streaming()
    coordinator.arrive(incoming(), 0)
    ((worker, command),) = commands(coordinator.on_worker_event(0, PrefillStarted(7, 0), 20))
    assert worker == 1
    assert isinstance(command, AddRequest)
    assert command.goal is Goal.DECODE


def test_piece_moves_as_soon_as_it_is_computed() -> None:
    assert moved(KvPiece(0, 10, 0), KvPiece(0, 10, 1)) == [0, 85, 85, 0]


def test_pieces_wait_for_decode_blocks_and_then_move_together() -> None:
    coordinator = streaming()
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    assert coordinator.on_layers_ready(7, KvPiece(0, 4, 0), 40) == []
    assert coordinator.on_layers_ready(7, KvPiece(0, 4, 1), 50) == []
    (transfer,) = started(coordinator.on_reserved(7, 60))
    assert transfer.num_bytes == 4 * (TOKEN_BYTES + 5)


def test_cached_prefix_moves_when_prefill_starts() -> None:
    # what the prefill worker hits in its cache is not in the decode worker's
    assert moved(KvPiece(8, 10, 0), KvPiece(8, 10, 1), cached=8) == [8 * 17, 17, 17, 0]


def test_cached_prefix_moves_at_once_where_decode_has_reserved_already() -> None:
    coordinator = streaming(is_decode_first=True)
    coordinator.arrive(incoming(), 0)
    coordinator.on_reserved(7, 10)
    (transfer,) = started(coordinator.on_worker_event(0, PrefillStarted(7, 8), 20))
    assert transfer.num_bytes == 8 * 17


def test_hand_off_ends_when_prefill_is_over_and_all_pieces_have_arrived() -> None:
    coordinator = streaming()
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    ids = [
        transfers(coordinator.on_layers_ready(7, KvPiece(0, 10, group), 40 + group))[0]
        for group in (0, 1)
    ]
    assert coordinator.on_transferred(ids[1], 60) == []
    assert coordinator.on_worker_event(0, Prefilled(7, 20, 0), 70) == []
    actions = coordinator.on_transferred(ids[0], 80)
    assert commands(actions) == [(0, ReleaseHeld(7)), (1, KvArrived(7))]


def test_end_of_prefill_ends_a_hand_off_whose_pieces_have_all_arrived() -> None:
    coordinator = streaming()
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    for group in (0, 1):
        (transfer_id,) = transfers(coordinator.on_layers_ready(7, KvPiece(0, 10, group), 40))
        assert coordinator.on_transferred(transfer_id, 50) == []
    actions = coordinator.on_worker_event(0, Prefilled(7, 20, 0), 70)
    assert commands(actions) == [(0, ReleaseHeld(7)), (1, KvArrived(7))]


def test_what_was_not_reported_moves_at_the_end_of_prefill() -> None:
    assert moved() == [0, 170]
    assert moved(KvPiece(0, 10, 0)) == [0, 85, 85]


def test_record_of_a_streamed_request_has_blocks_reserved_during_prefill() -> None:
    coordinator = streaming(1)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    (transfer_id,) = transfers(coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100))
    coordinator.on_transferred(transfer_id, 140)
    coordinator.on_worker_event(1, FirstToken(7), 150)
    record = record_of(coordinator.on_worker_event(1, Finished(7, 3, 0), 170))
    assert (record.prefill_start_ns, record.reserved_ns, record.prefill_end_ns) == (20, 30, 100)
    assert (record.transferred_ns, record.first_token_ns) == (140, 150)
    assert record.transfer_bytes == 170


def test_prompt_that_starts_over_sends_nothing_twice() -> None:
    # preempted after 8 tokens, of which it finds 4 in the cache when it starts over
    coordinator = streaming(1)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    total = sum(t.num_bytes for t in started(coordinator.on_layers_ready(7, KvPiece(0, 8, 0), 40)))
    assert coordinator.on_worker_event(0, PrefillStarted(7, 4), 60) == []
    assert coordinator.on_layers_ready(7, KvPiece(4, 7, 0), 70) == []
    rest = started(coordinator.on_layers_ready(7, KvPiece(7, 10, 0), 80))
    assert total + sum(t.num_bytes for t in rest) == 170


def test_prompt_computed_again_by_the_decode_worker_is_not_handed_off_again() -> None:
    coordinator = streaming(1)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    (transfer_id,) = transfers(coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100))
    coordinator.on_transferred(transfer_id, 140)
    assert coordinator.on_worker_event(1, PrefillStarted(7, 8), 160) == []  # was preempted there
    coordinator.check_invariants()


def test_pieces_of_other_requests_are_left_alone() -> None:
    coordinator = streaming()
    coordinator.arrive(incoming(), 0)
    assert coordinator.on_layers_ready(7, KvPiece(0, 4, 0), 10) == []
    assert coordinator.on_layers_ready(8, KvPiece(0, 4, 0), 10) == []


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 40),
    st.integers(0, 9),
)
def test_bytes_of_all_pieces_sum_to_the_whole_prompt_by_rank(
    chunks: list[int], num_groups: int, reserved_after: int, cached: int
) -> None:
    """INV-11, whenever the destination is reserved."""
    num_tokens = cached + sum(chunks)
    coordinator = streaming(num_groups)
    coordinator.arrive(incoming(num_prompt_tokens=num_tokens), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, cached), 0)
    steps, first = list[KvPiece](), cached
    for chunk in chunks:
        steps += [KvPiece(first, first + chunk, group) for group in range(num_groups)]
        first += chunk
    sent = [0, 0]
    for i in range(len(steps) + 2):
        actions = coordinator.on_reserved(7, i) if i == min(reserved_after, len(steps)) else []
        if i < len(steps):
            actions += coordinator.on_layers_ready(7, steps[i], i)
        elif i == len(steps):
            actions += coordinator.on_worker_event(0, Prefilled(7, 0, cached), i)
        for transfer in started(actions):
            for part in transfer.parts:
                sent[part.src_gpu] += part.num_bytes
        coordinator.check_invariants()
    assert tuple(sent) == rank_bytes(num_tokens)


def exposed_ns(prefill_ns: int, wire_ns: int, num_groups: int) -> Fraction:
    """Return how long after the prefill a streamed hand-off ends, over one link of its own."""
    coordinator = streaming(num_groups)
    coordinator.arrive(incoming(num_prompt_tokens=60), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 0)
    coordinator.on_reserved(7, 0)
    whole = sum(rank_bytes(60))
    link_free, last_id = Fraction(0), -1
    for group in range(num_groups):
        ready = Fraction(prefill_ns * (group + 1), num_groups)
        piece = KvPiece(0, 60, group)
        for transfer in started(coordinator.on_layers_ready(7, piece, int(ready))):
            if last_id >= 0:
                assert coordinator.on_transferred(last_id, 0) == []
            last_id = transfer.transfer_id
            link_free = max(link_free, ready) + Fraction(wire_ns * transfer.num_bytes, whole)
    assert coordinator.on_worker_event(0, Prefilled(7, 0, 0), prefill_ns) == []
    assert commands(coordinator.on_transferred(last_id, int(link_free)))
    return link_free - prefill_ns


@pytest.mark.parametrize("num_groups", [1, 2, 4, 10, 60])
@pytest.mark.parametrize(("prefill_ns", "wire_ns"), [(6000, 600), (6000, 6000), (600, 6000)])
def test_exposed_time_is_the_last_group_and_what_the_wire_is_slower(
    prefill_ns: int, wire_ns: int, num_groups: int
) -> None:
    # the published rule: exposed ~ last layer + max(0, T_transfer - T_prefill); exactly, the last
    # layer's share is of the shorter of the two, since the longer one hides the other
    expected = Fraction(min(prefill_ns, wire_ns), num_groups) + max(0, wire_ns - prefill_ns)
    assert exposed_ns(prefill_ns, wire_ns, num_groups) == expected


# ---------------------------------------------------------------------- the stream alone


def test_nothing_is_taken_twice() -> None:
    stream = LayerStream(10, 2)
    stream.add_all(10)
    assert stream.take(rank_bytes) == [120, 50]
    assert stream.take(rank_bytes) is None
    assert stream.is_sent


def test_piece_after_a_gap_is_a_driver_that_forgot_one() -> None:
    with pytest.raises(AssertionError, match="before the piece"):
        LayerStream(10, 2).add(KvPiece(4, 8, 0))


def test_piece_past_the_prompt_is_refused() -> None:
    with pytest.raises(AssertionError, match="past the end"):
        LayerStream(10, 2).add(KvPiece(0, 11, 0))
