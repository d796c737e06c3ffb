"""Which KV cache of one request is computed at the source and not yet on its way."""

from kvfabric.kvcache.resharding import RankBytes, piece_bytes
from kvfabric.protocol.transfer import KvPiece


class LayerStream:
    """How far each layer group has come, in tokens from the front of the prompt.

    ``| sent | ready, waits for decode blocks | not computed |``

    A prompt that starts over after a preemption computes some tokens again; what was ready or sent
    stays so, and nothing is sent twice. Pieces sum to the whole prompt's bytes exactly, pair of
    ranks by pair of ranks.

    Invariants:
        I1. ``sent <= ready <= num_tokens`` in every group.
    """

    __slots__ = ("_num_tokens", "_ready", "_sent", "_waiting")

    def __init__(self, num_tokens: int, num_groups: int) -> None:
        """Start with nothing computed of ``num_tokens`` tokens."""
        self._num_tokens = num_tokens
        self._ready = [0] * num_groups
        self._sent = [0] * num_groups
        self._waiting: dict[int, None] = {}  # groups with something ready and not sent, in order

    @property
    def is_sent(self) -> bool:
        """Return whether the whole prompt is on its way or there."""
        return not self._waiting and min(self._sent) == self._num_tokens

    def add(self, piece: KvPiece) -> None:
        """Take in that a piece is computed; what is known to be ready already is not counted."""
        ready = self._ready[piece.group]
        assert piece.first_token <= ready, "tokens before the piece are not computed"
        assert piece.end_token <= self._num_tokens, "a piece past the end of the prompt"
        if piece.end_token > ready:
            self._ready[piece.group] = piece.end_token
            self._waiting[piece.group] = None

    def add_all(self, num_tokens: int) -> None:
        """Take in that the first ``num_tokens`` tokens are there in every layer group."""
        for group, ready in enumerate(self._ready):
            if num_tokens > ready:
                self._ready[group] = num_tokens
                self._waiting[group] = None

    def take(self, rank_bytes: RankBytes) -> list[int] | None:
        """Return the bytes of all that waits, by pair of ranks, and count it as sent."""
        if not self._waiting:
            return None
        num_groups = len(self._ready)
        total: list[int] = []
        spans: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for group in self._waiting:
            first, end = self._sent[group], self._ready[group]
            if (first, end) not in spans:
                after = rank_bytes(end)
                spans[first, end] = [rank_bytes(first) if first else (0,) * len(after), after]
            before, after = spans[first, end]
            piece = piece_bytes(before, after, group, num_groups)
            total = [a + b for a, b in zip(total, piece, strict=True)] if total else piece
            self._sent[group] = end
        self._waiting = {}
        return total

    def check_invariants(self) -> None:
        """Assert I1."""
        for group, (sent, ready) in enumerate(zip(self._sent, self._ready, strict=True)):
            assert 0 <= sent <= ready <= self._num_tokens, "I1"
            assert (sent < ready) == (group in self._waiting), "I1"
