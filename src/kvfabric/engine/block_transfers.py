"""KV cache on its way between workers: which blocks move when, and what is under way.

KV cache moves in whole blocks. A piece of a streamed prompt carries the blocks that are full by
then, layer group by layer group, which may be none; the last piece carries the rest.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from kvfabric.units import ceil_div


class Moving(NamedTuple):
    """A transfer under way, from one worker to another, for a request."""

    request_id: int
    source: int
    destination: int
    start_ns: int
    num_bytes: int = 0


class Part(NamedTuple):
    """Blocks of a prompt's table, by their places in it, in layers ``[first_layer, end_layer)``."""

    blocks: range
    first_layer: int
    end_layer: int


class _Streamed:
    """How much of a prompt is computed at the source, in tokens, and on its way, in blocks.

    Both by layer group, as ``serving.streaming`` has it.
    """

    __slots__ = ("num_ready", "num_sent")

    def __init__(self, num_groups: int) -> None:
        self.num_ready = [0] * num_groups
        self.num_sent = [0] * num_groups


class BlockTransfers:
    """All transfers of a cluster.

    Attributes:
        layer_ends: the layer after the last of each group, ascending.
        moved_bytes: of all transfers that were started.
        transfer_ns: how long those took that arrived, summed.
    """

    __slots__ = (
        "_block_size",
        "_empty",
        "_layer_bytes",
        "_moving",
        "_streamed",
        "layer_ends",
        "moved_bytes",
        "transfer_ns",
    )

    def __init__(self, block_size: int, block_bytes: int, layer_ends: Sequence[int]) -> None:
        """Start with nothing under way.

        Args:
            block_size: tokens per block.
            block_bytes: KV bytes of one block, all layers.
            layer_ends: see the class; the last one is the number of layers.
        """
        assert list(layer_ends) == sorted({*layer_ends}), "groups ascend"
        assert layer_ends[0] > 0, "a group has a layer"
        self.layer_ends = tuple(layer_ends)
        self._block_size, self._layer_bytes = block_size, block_bytes // layer_ends[-1]
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
        self._streamed[request_id] = _Streamed(len(self.layer_ends))

    def ready(self, request_id: int, num_tokens: int, group: int | None = None) -> None:
        """Take in that the first tokens of a prompt are computed, in a layer group or in all."""
        streamed = self._streamed.get(request_id)
        if streamed is None:
            return
        ready = streamed.num_ready
        for i in range(len(ready)) if group is None else (group,):
            ready[i] = max(ready[i], num_tokens)

    def is_streamed(self, request_id: int) -> bool:
        """Return whether the KV cache of a prompt moves piece by piece."""
        return request_id in self._streamed

    def forget(self, request_id: int) -> None:
        """Forget a prompt whose request is over."""
        self._streamed.pop(request_id, None)

    def next_parts(self, request_id: int, num_prompt_tokens: int) -> list[Part]:
        """Return what of a prompt moves now, and count it as sent; neighbours are joined."""
        num_blocks = ceil_div(num_prompt_tokens, self._block_size)
        streamed = self._streamed.get(request_id)
        if streamed is None:
            return [Part(range(num_blocks), 0, self.layer_ends[-1])]
        parts: list[Part] = []
        for group, (first_layer, end_layer) in enumerate(pairwise((0, *self.layer_ends))):
            ready = streamed.num_ready[group]
            end = num_blocks if ready == num_prompt_tokens else ready // self._block_size
            blocks = range(streamed.num_sent[group], end)
            streamed.num_sent[group] = end
            if parts and parts[-1].end_layer == first_layer and parts[-1].blocks == blocks:
                parts[-1] = parts[-1]._replace(end_layer=end_layer)
            elif blocks:
                parts.append(Part(blocks, first_layer, end_layer))
        return parts

    # ------------------------------------------------------------------ transfers

    def begin(self, transfer_id: int, moving: Moving, parts: Sequence[Part]) -> None:
        """Take in that a transfer starts."""
        layers = [len(blocks) * (end_layer - first) for blocks, first, end_layer in parts]
        num_bytes = sum(layers) * self._layer_bytes
        self._moving[transfer_id] = moving._replace(num_bytes=num_bytes)
        self.moved_bytes += num_bytes
        if not parts:
            self._empty.append(transfer_id)

    def end(self, transfer_id: int, arrived_ns: int | None) -> Moving | None:
        """Take in that a transfer has arrived, or at None was stopped; return what it was.

        None for one that is not under way.
        """
        moving = self._moving.pop(transfer_id, None)
        if moving is not None and arrived_ns is not None:
            self.transfer_ns += arrived_ns - moving.start_ns
        return moving
