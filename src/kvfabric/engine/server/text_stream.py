"""The text of one output as a client sees it: nothing from a stop text on, and never taken back."""

from collections.abc import Sequence

from kvfabric.engine.detokenizer import Detokenizer, cut_at_stop


class TextStream:
    """Text from tokens, held back where it may turn out to be the beginning of a stop text."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        """Start an output that ends before any of ``stops``; none of them is empty."""
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._held = ""
        self._is_cut = False

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is certain now."""
        return self._release(self._detokenizer.push(token_id), is_last=False)

    def finish(self) -> str:
        """Return what is left."""
        return self._release(self._detokenizer.finish(), is_last=True)

    def _release(self, text: str, *, is_last: bool) -> str:
        if self._is_cut:
            return ""
        self._held += text
        cut = cut_at_stop(self._held, self._stops)
        if len(cut) < len(self._held):
            self._is_cut, self._held = True, ""
            return cut
        keep = 0 if is_last else longest_beginning(self._held, self._stops)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return certain


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of a text a stop text could begin with.

    >>> longest_beginning("one. t", (" two",))
    2
    """
    longest = max((len(stop) for stop in stops), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        end = text[-length:]
        if any(stop.startswith(end) for stop in stops):
            return length
    return 0
