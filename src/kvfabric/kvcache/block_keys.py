"""The prefix-cache keys of one request's blocks, computed on demand."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.errors import ConfigError
from kvfabric.units import ceil_div

CONTENT_HASH_BITS = 64

_PRIVATE_SPAN = 1 << 32


def namespace_id(*, cache_salt: str = "", adapter: str = "") -> int:
    """Return which requests may share cached blocks: those of equal salt and equal adapter.

    The KV of equal tokens differs under another adapter (LoRA), and a salt keeps tenants from
    seeing by the time to first token what others have asked. vLLM mixes both into its block hashes.

    Returns:
        0 without either; otherwise a digest of 256 bits that nobody can aim at, the same in every
        process.
    """
    if not cache_salt and not adapter:
        return 0
    salt = cache_salt.encode()
    return int.from_bytes(
        hashlib.sha256(b"%d:%b%b" % (len(salt), salt, adapter.encode())).digest(), "big"
    )


@dataclass(slots=True, init=False)
class BlockKeys:
    """Turns a request's content hashes into one key per KV block.

    Content hashes name ``ratio`` KV blocks each (a trace may hash 512 tokens where blocks hold 64).
    They stand within the request's namespace: whoever else compares prefixes, such as a router's
    index, must compare ``hashes`` too. Blocks past ``num_known`` hold tokens that no other request
    can name; their keys are private to the request, so that only itself finds them again, after a
    preemption. More blocks may become known as output fills them (``learn``); what is known stays.
    """

    request_id: int
    hashes: tuple[int, ...]
    ratio: int
    num_known: int
    _named: list[int] = field(repr=False, compare=False)

    def __init__(
        self, request_id: int, hashes: tuple[int, ...], ratio: int, num_known: int
    ) -> None:
        """Set the fields; nothing is computed yet."""
        self.request_id = request_id
        self.hashes = hashes
        self.ratio = ratio
        self.num_known = num_known
        self._named = []

    def keys(self, first: int, end: int) -> list[int]:
        """Return the keys of the blocks at the indices ``[first, end)`` of the block table."""
        known = min(self.num_known, end)
        if first >= known:
            return self._private(first, end)
        named = self._named or self._name()
        keys = named[first:known]
        return keys if end <= known else keys + self._private(known, end)

    def learn(self, keys: Sequence[int]) -> None:
        """Know the keys of the next blocks, past all that are known."""
        named = self._named or self._name()
        assert len(named) == self.num_known, "its last content hash covers more blocks"
        named += keys
        self.num_known = len(named)

    def _name(self) -> list[int]:
        """Compute the keys of all known blocks, once: they are asked for again and again."""
        named, ratio = self._named, self.ratio
        for content_hash in self.hashes[: ceil_div(self.num_known, ratio)]:
            named += range(content_hash * ratio, (content_hash + 1) * ratio)
        return named

    def _private(self, first: int, end: int) -> list[int]:
        private = self.request_id * _PRIVATE_SPAN + 1
        return list(range(-(private + first), -(private + end), -1))


def block_keys(
    request_id: int,
    hashes: tuple[int, ...],
    *,
    num_prompt_tokens: int,
    hash_block_tokens: int,
    block_size: int,
    namespace: int = 0,
) -> BlockKeys:
    """Return the keys of a request; equal hashes of different namespaces have nothing in common.

    The last hash of a prompt may cover a partial block; what follows the prompt inside it is not
    known. Only hashes that reach past the prompt make blocks of its output known.
    """
    if not hashes:
        return BlockKeys(request_id, (), 1, 0)
    if hash_block_tokens % block_size:
        raise ConfigError(
            f"block size {block_size} does not divide the {hash_block_tokens} tokens of a hash",
            hint="Choose a block size that divides it, or drop the hashes",
        )
    covered = len(hashes) * hash_block_tokens
    reaches_past = covered - num_prompt_tokens >= hash_block_tokens
    known = covered if reaches_past else min(covered, num_prompt_tokens)
    known = min(known, _num_distinct(hashes) * hash_block_tokens)
    if namespace:
        hashes = _within(namespace, hashes)
    return BlockKeys(request_id, hashes, hash_block_tokens // block_size, known // block_size)


def _within(namespace: int, hashes: tuple[int, ...]) -> tuple[int, ...]:
    """Return hashes that no other namespace can have."""
    assert 0 <= min(hashes) <= max(hashes) < 1 << CONTENT_HASH_BITS
    offset = namespace << CONTENT_HASH_BITS
    return tuple(offset + content_hash for content_hash in hashes)


def _num_distinct(hashes: tuple[int, ...]) -> int:
    """Return how many hashes come before one that stands there already: no prefix is its own."""
    if len(set(hashes)) == len(hashes):
        return len(hashes)
    seen: set[int] = set()
    for position, key in enumerate(hashes):
        if key in seen:
            return position
        seen.add(key)
    return len(hashes)
