"""KV cache on its way between workers: which blocks move when, and what is under way.

KV cache moves in whole blocks. A piece of a streamed prompt carries the blocks that are full by
then, which may be none; the last piece carries the rest.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kvfabric.units import ceil_div


class Moving(NamedTuple):
    """A transfer under way, from one worker to another, for a request."""

    request_id: int
    source: int
    destination: int
    start_ns: int


@dataclass(slots=True)
class _Streamed:
    """How much of a prompt is computed at the source, in tokens, and on its way, in blocks."""

    num_ready: int = 0
    num_sent_blocks: int = 0


class BlockTransfers:
    """All transfers of a cluster.

    Attributes:
        moved_bytes: of all transfers that were started.
        transfer_ns: how long those took that arrived, summed.
    """

    __slots__ = (
        "_block_bytes",
        "_block_size",
        "_empty",
        "_moving",
        "_streamed",
        "moved_bytes",
        "transfer_ns",
    )

    def __init__(self, block_size: int, block_bytes: int) -> None:
        """Start with nothing under way."""
        self._block_size, self._block_bytes = block_size, block_bytes
        self._moving: dict[int, Moving] = {}
        self._streamed: dict[int, _Streamed] = {}
        self._empty: list[int] = []  # without a block: they have arrived when they start
        self.moved_bytes = 0
        self.transfer_ns = 0

    @property
    def num_moving(self) -> int:
        """Return the transfers under way."""
        return len(self._moving)

    def is_moving(self, transfer_id: int) -> bool:
        """Return whether a transfer is under way."""
        return transfer_id in self._moving

    @property
    def has_empty(self) -> bool:
        """Return whether a transfer without a block was started and not taken."""
        return bool(self._empty)

    def take_empty(self) -> list[int]:
        """Return the transfers that carry nothing, once."""
        taken, self._empty = self._empty, []
        return taken

    # ------------------------------------------------------------------ prompts

    def stream(self, request_id: int) -> None:
        """Take in that a prompt begins, or begins anew, whose KV cache moves piece by piece."""
        self._streamed[request_id] = _Streamed()

    def ready(self, request_id: int, num_tokens: int) -> None:
        """Take in that the first tokens of a prompt are computed."""
        streamed = self._streamed.get(request_id)
        if streamed is not None:
            streamed.num_ready = max(streamed.num_ready, num_tokens)

    def forget(self, request_id: int) -> None:
        """Forget a prompt whose request is over."""
        self._streamed.pop(request_id, None)

    def next_blocks(self, request_id: int, num_prompt_tokens: int) -> range:
        """Return which blocks of a prompt's table move now, and count them as sent."""
        num_blocks = ceil_div(num_prompt_tokens, self._block_size)
        streamed = self._streamed.get(request_id)
        if streamed is None:
            return range(num_blocks)
        is_whole = streamed.num_ready == num_prompt_tokens
        end = num_blocks if is_whole else streamed.num_ready // self._block_size
        first, streamed.num_sent_blocks = streamed.num_sent_blocks, end
        return range(first, end)

    # ------------------------------------------------------------------ transfers

    def begin(self, transfer_id: int, moving: Moving, num_blocks: int) -> None:
        """Take in that a transfer starts."""
        self._moving[transfer_id] = moving
        self.moved_bytes += num_blocks * self._block_bytes
        if not num_blocks:
            self._empty.append(transfer_id)

    def end(self, transfer_id: int, arrived_ns: int | None) -> Moving | None:
        """Take in that a transfer has arrived, or at None was stopped; return what it was.

        None for one that is not under way.
        """
        moving = self._moving.pop(transfer_id, None)
        if moving is not None and arrived_ns is not None:
            self.transfer_ns += arrived_ns - moving.start_ns
        return moving
