"""The hand-off's table of states: every transition it has and every one it has not."""

from itertools import product

import pytest

from kvfabric.errors import IllegalTransitionError
from kvfabric.serving.handoff import Handoff, HandoffState

ASKED, RESERVED, TRANSFERRING, ACKNOWLEDGED, CANCELLED = HandoffState
LEGAL = {
    (ASKED, RESERVED),
    (RESERVED, TRANSFERRING),
    (TRANSFERRING, ACKNOWLEDGED),
    (ASKED, CANCELLED),
    (RESERVED, CANCELLED),
    (TRANSFERRING, CANCELLED),
}


def handoff_in(state: HandoffState) -> Handoff:
    return Handoff(7, 0, 1, state)


def test_new_hand_off_has_asked_its_destination_and_holds_nothing() -> None:
    handoff = Handoff(7, 0, 1)
    assert handoff.state is ASKED
    assert not handoff.is_prefilled


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL, key=str))
def test_legal_transition_is_taken(before: HandoffState, after: HandoffState) -> None:
    handoff = handoff_in(before)
    handoff.move_to(after)
    assert handoff.state is after


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in product(HandoffState, repeat=2) if pair not in LEGAL]
)
def test_illegal_transition_raises_and_changes_nothing(
    before: HandoffState, after: HandoffState
) -> None:
    handoff = handoff_in(before)
    with pytest.raises(IllegalTransitionError, match=f"{before.value} -> {after.value}"):
        handoff.move_to(after)
    assert handoff.state is before


@pytest.mark.parametrize("state", HandoffState)
def test_only_acknowledged_and_cancelled_are_final(state: HandoffState) -> None:
    assert handoff_in(state).is_over == (state in {ACKNOWLEDGED, CANCELLED})
