"""Text from tokens as they come: a character is given out once all its bytes are there."""

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"  # what a tokenizer decodes an unfinished UTF-8 sequence to


class Detokenizer:
    """The text of one output, token by token.

    What is given out is never taken back. A token's text can depend on the one before (spaces of
    some tokenizers), so a few tokens already given out are decoded again with the new one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Decode with a tokenizer's function."""
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0  # [context, given) is decoded again
        self._given = 0

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is certain now, often its own, sometimes none."""
        self._ids.append(token_id)
        return self._new_text(finished=False)

    def finish(self) -> str:
        """Return what is left, unfinished characters as U+FFFD."""
        return self._new_text(finished=True)

    def _new_text(self, *, finished: bool) -> str:
        before = self._decode(self._ids[self._context : self._given])
        text = self._decode(self._ids[self._context :])
        if len(text) <= len(before) or (text.endswith(_INCOMPLETE) and not finished):
            return ""
        self._context, self._given = self._given, len(self._ids)
        return text[len(before) :]


class StopTexts:
    """Watches one output for the texts that end it."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        """Watch for any of ``stops``; none of them is empty."""
        self._detokenizer, self._stops = detokenizer, [stop for stop in stops if stop]
        self._kept = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail = ""

    def push(self, token_id: int) -> bool:
        """Take a token; return whether a stop text is complete now."""
        text = self._tail + self._detokenizer.push(token_id)
        self._tail = text[max(0, len(text) - self._kept) :]
        return any(stop in text for stop in self._stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first stop text in it.

    >>> cut_at_stop("one. two. three", (" t", "two"))
    'one.'
    """
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
