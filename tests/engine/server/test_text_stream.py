"""Stop texts never reach a client, not even in part, and nothing else is lost."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvfabric.engine.detokenizer import Detokenizer, cut_at_stop
from kvfabric.engine.server.text_stream import TextStream


def _decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def _stream(text: str, stops: list[str]) -> list[str]:
    stream = TextStream(Detokenizer(_decode), stops)
    return [*(stream.push(token_id) for token_id in text.encode()), stream.finish()]


def test_text_is_held_back_while_it_may_be_a_stop_text() -> None:
    assert _stream("a<b<stop>c", ["<stop>"]) == ["a", "", "<b", *[""] * 8]


def test_a_stop_text_that_was_not_one_is_given_out_at_the_end() -> None:
    assert "".join(_stream("ab<sto", ["<stop>"])) == "ab<sto"


@given(st.text("ab€", max_size=30), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_the_pieces_are_the_text_up_to_the_first_stop_text(text: str, stops: list[str]) -> None:
    pieces = _stream(text, stops)
    whole = cut_at_stop(text, stops)
    joined = "".join(pieces)
    # token by token an earlier end wins over an earlier beginning
    assert joined == whole or any((joined + stop) in text for stop in stops)
    assert not any(stop in joined for stop in stops)
    if not any(stop in text for stop in stops):
        assert joined == text
