"""Text given out token by token is the text decoded at once; stops are seen across tokens."""

from kvfabric.engine.detokenizer import Detokenizer, StopTexts, cut_at_stop
from kvfabric.engine.tokenizer import byte_tokenizer

TEXT = "naïve 😀 日本語, done\n\n"


def test_bytes_become_characters_when_complete() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(TEXT)
    assert len(ids) == len(TEXT.encode())
    stream = tokenizer.detokenizer()
    parts = [stream.push(token_id) for token_id in ids]
    assert "".join(parts) == TEXT
    assert stream.finish() == ""
    assert all("\ufffd" not in part for part in parts)
    emoji = TEXT.encode().index("😀".encode())
    assert parts[emoji : emoji + 4] == ["", "", "", "😀"]


def test_unfinished_characters_are_shown_at_the_end() -> None:
    tokenizer = byte_tokenizer()
    stream = tokenizer.detokenizer()
    assert [stream.push(i) for i in tokenizer.encode("a😀")[:3]] == ["a", "", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_context_sensitive_decoding() -> None:
    """As SentencePiece does: the first token of a decoded text loses its space."""
    words = [" one", " two", " three"]
    stream = Detokenizer(lambda ids: "".join(words[i] for i in ids).removeprefix(" "))
    assert [stream.push(i) for i in range(3)] == ["one", " two", " three"]


def test_stop_text_across_tokens() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("one two three")
    stops = StopTexts(tokenizer.detokenizer(), ("two", "zzz", ""))
    assert [stops.push(i) for i in ids].index(True) == len("one two") - 1


def test_stop_text_within_a_token() -> None:
    words = ["a", "b. c", "d"]
    stream = Detokenizer(lambda ids: "".join(words[i] for i in ids))
    stops = StopTexts(stream, (". ",))
    assert [stops.push(0), stops.push(1)] == [False, True]


def test_cut_at_the_earliest_stop() -> None:
    assert cut_at_stop("abcdef", ("e", "cd")) == "ab"
    assert cut_at_stop("abcdef", ("x", "")) == "abcdef"
