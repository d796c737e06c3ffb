"""Which rank sends which bytes to which rank when source and destination differ in tensor parallel.

Every destination rank's shard is cut into equal slots, ``lcm(source, destination) / destination``
of them, and slot k of all is sent by source rank ``k x source / lcm``::

    source 2, destination 4     source 4, destination 2
    |   0   |   1   | sends     | 0 | 1 | 2 | 3 | sends
    | 0 | 1 | 2 | 3 | receive   |   0   |   1   | receive

Heads lie in rank order on both sides, so a source rank has what it is asked for. Where ranks
outnumber heads and keep copies, every destination rank receives its own copy and the source ranks
that keep one share the sending evenly. Equal sizes give rank r to rank r.

A latent is whole on every rank of both sides. All source ranks share the sending; it crosses the
fabric once, a part to each destination rank, and the destination ranks exchange their parts inside
the server (the choice of ``wire_bytes_by_rank`` with all ranks sending). ``copies_latent`` sends
every destination rank the whole of it instead, as vLLM 0.19's NIXL connector does.

With ``LatentSenders.FIRST`` or ``ROTATE`` one pair of ranks moves all of a latent: one NIC sends,
one receives, and the other destination ranks take it from there inside the server. Bytes in all
are the same. What is split moves as before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import lcm

from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import (
    TOKEN_KINDS,
    KVGeometry,
    LayerGroup,
    layer_token_bytes,
    undivided,
)
from kvfabric.units import ceil_div

RankBytes = Callable[[int], tuple[int, ...]]


class LatentSenders(Enum):
    """Which of the ranks that all hold the same latent sends it."""

    ALL = "all"  # each an equal share
    FIRST = "first"  # the first pair of ranks moves all of it, always
    ROTATE = "rotate"  # one pair moves all of it, the next one at the next turn


@dataclass(frozen=True, slots=True)
class _ShardBytes:
    """Bytes of a rank's shard: a constant, a rate per token, and rates that end at a window."""

    constant: int
    per_token: int
    windowed: tuple[tuple[int, int], ...]  # (window in tokens, bytes per token)

    def of(self, num_tokens: int) -> int:
        total = self.constant + num_tokens * self.per_token
        for window, per_token in self.windowed:
            total += min(num_tokens, window) * per_token
        return total


class KvResharding:
    """The pairs of ranks that hand over a prompt's KV cache, and the bytes of each pair.

    Attributes:
        pairs: ``(source rank, destination rank)``, by destination, then source.
        num_turns: after so many turns the same pair moves the latent again; 1 where the turn does
            not matter.
    """

    __slots__ = (
        "_copies_latent",
        "_latent",
        "_latent_pairs",
        "_slots",
        "_split",
        "_tp_dst",
        "num_turns",
        "pairs",
    )

    def __init__(
        self,
        geometry: KVGeometry,
        *,
        tp_src: int,
        tp_dst: int,
        dtype_bytes: int | None = None,
        copies_latent: bool = False,
        senders: LatentSenders = LatentSenders.ALL,
    ) -> None:
        """Make the plan for any prompt of a model.

        Args:
            geometry: the model; one pipeline stage on both sides.
            tp_src: tensor-parallel ranks of the source.
            tp_dst: tensor-parallel ranks of the destination.
            dtype_bytes: bytes per cached element; the model's own by default.
            copies_latent: send a latent to every destination rank instead of once in all.
            senders: who sends a latent; makes no difference to a model without one.

        Raises:
            ConfigError: the ranks of a side do not divide the model, or one pair of ranks is to
                send copies to all.
        """
        for side, tp in (("source", tp_src), ("destination", tp_dst)):
            problem = "is less than 1" if tp < 1 else undivided(geometry, tp)
            if problem:
                raise ConfigError(
                    f"tensor-parallel size {tp} of the {side} {problem}",
                    hint="Write a size that the model can be split into",
                )
        if copies_latent and senders is not LatentSenders.ALL:
            raise ConfigError(
                f"copies of a latent for every rank from the sender {senders.value!r}",
                hint="Leave out copies_latent, or let all ranks send",
            )
        size = geometry.dtype_bytes if dtype_bytes is None else dtype_bytes
        self._tp_dst = tp_dst
        self._copies_latent = copies_latent
        self._split = _shard_bytes(geometry, tp_dst, size, is_latent=False)
        self._latent = _shard_bytes(geometry, tp_dst, size, is_latent=True)
        self.pairs, self._slots = _pair_slots(tp_src, tp_dst)
        self._latent_pairs: tuple[int, ...] = ()
        if self._latent.of(1 << 20) and senders is not LatentSenders.ALL:
            in_turn = _pairs_in_turn(self.pairs)
            self._latent_pairs = in_turn[:1] if senders is LatentSenders.FIRST else in_turn
        self.num_turns = max(1, len(self._latent_pairs))

    def pair_bytes(self, num_tokens: int, turn: int = 0) -> tuple[int, ...]:
        """Return the bytes each of ``pairs`` moves for a prompt; no pair's shrink with its length.

        The bytes to one destination rank sum to exactly its shard. Where one pair moves the latent,
        ``turn`` says which, and what is split sums to the shard without it.
        """
        if self._latent_pairs:
            sizes = list(self._slotted((self._split.of(num_tokens),) * self._tp_dst))
            pair = self._latent_pairs[turn % len(self._latent_pairs)]
            sizes[pair] += self._latent.of(num_tokens)
            return tuple(sizes)
        return self._slotted(self._shards(num_tokens))

    def turns(self) -> tuple[RankBytes, ...]:
        """Return ``pair_bytes`` of every turn."""
        return tuple([partial(self.pair_bytes, turn=turn) for turn in range(self.num_turns)])

    def _slotted(self, shards: tuple[int, ...]) -> tuple[int, ...]:
        """Return the bytes of each pair if destination ranks receive these shards."""
        num_slots = self._slots[-1][2]
        if num_slots == 1:
            return shards
        return tuple(
            share_before(shards[dst], end, num_slots) - share_before(shards[dst], first, num_slots)
            for (_, dst), (first, end, _) in zip(self.pairs, self._slots, strict=True)
        )

    def _shards(self, num_tokens: int) -> tuple[int, ...]:
        """Return the bytes each destination rank receives."""
        split, latent = self._split.of(num_tokens), self._latent.of(num_tokens)
        tp_dst = self._tp_dst
        if self._copies_latent or not latent:
            return (split + latent,) * tp_dst
        return tuple(split + share_of(latent, rank, tp_dst) for rank in range(tp_dst))


def share_of(num_bytes: int, index: int, num_shares: int) -> int:
    """Return one of ``num_shares`` equal shares; the first ones take a byte more of what is left.

    A share never shrinks when ``num_bytes`` grows.
    """
    return (num_bytes + num_shares - 1 - index) // num_shares


def share_before(num_bytes: int, index: int, num_shares: int) -> int:
    """Return the sum of the shares before ``index``."""
    each, rest = divmod(num_bytes, num_shares)
    return index * each + min(index, rest)


def piece_bytes(
    before: tuple[int, ...], after: tuple[int, ...], group: int, num_groups: int
) -> list[int]:
    """Return what one layer group of some tokens moves, pair by pair.

    All groups of all tokens sum to the whole prompt's bytes exactly, whatever the pieces are.

    Args:
        before: bytes of all layers for the tokens before the piece, all zero for the first.
        after: bytes of all layers for those and the tokens of the piece.
        group: the layer group.
        num_groups: layer groups; each has an equal share of every token's bytes.
    """
    rounding = num_groups - 1 - group
    return [
        (end + rounding) // num_groups - (start + rounding) // num_groups
        for start, end in zip(before, after, strict=True)
    ]


def _shard_bytes(
    geometry: KVGeometry, tp: int, dtype_bytes: int, *, is_latent: bool
) -> _ShardBytes:
    """Return what one rank keeps of the layers with or without a latent."""
    constant = per_token = 0
    windowed: dict[int, int] = {}
    for group in geometry.groups:
        if group.layout.is_latent is not is_latent:
            continue
        constant += len(group.layers) * ceil_div(group.layout.state_bytes, tp)
        rate = _token_bytes(group, tp, dtype_bytes)
        window = group.layout.window_tokens
        if window:
            windowed[window] = windowed.get(window, 0) + rate
        else:
            per_token += rate
    return _ShardBytes(constant, per_token, tuple(sorted(windowed.items())))


def _token_bytes(group: LayerGroup, tp: int, dtype_bytes: int) -> int:
    layout = group.layout
    if layout.kind not in TOKEN_KINDS:
        return 0
    one_layer = layer_token_bytes(layout, dtype_bytes=dtype_bytes, tp=tp) + layout.index_bytes
    return len(group.layers) * one_layer


def _pair_slots(
    tp_src: int, tp_dst: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
    """Return the pairs, and of each the slots ``[first, end)`` of how many in a destination."""
    num_all = lcm(tp_src, tp_dst)
    num_slots = num_all // tp_dst
    span = num_all // tp_src  # slots of one source rank
    pairs: list[tuple[int, int]] = []
    slots: list[tuple[int, int, int]] = []
    for dst in range(tp_dst):
        start = dst * num_slots
        for src in range(start // span, (start + num_slots - 1) // span + 1):
            first = max(src * span - start, 0)
            end = min((src + 1) * span - start, num_slots)
            pairs.append((src, dst))
            slots.append((first, end, num_slots))
    return tuple(pairs), tuple(slots)


def _pairs_in_turn(pairs: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return the places of the pairs in an order in which source ranks follow each other.

    >>> _pairs_in_turn(((0, 0), (0, 1), (1, 2), (1, 3)))
    (0, 2, 1, 3)
    """
    num_seen: dict[int, int] = {}
    order: list[tuple[int, int, int]] = []
    for place, (src, _) in enumerate(pairs):
        order.append((num_seen.get(src, 0), src, place))
        num_seen[src] = num_seen.get(src, 0) + 1
    return tuple([place for _, _, place in sorted(order)])
