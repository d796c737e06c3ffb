"""The prefix-cache keys of one request's blocks, computed on demand."""

from dataclasses import dataclass

from kvfabric.errors import ConfigError

_PRIVATE_SPAN = 1 << 32


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """Turns a request's content hashes into one key per KV block.

    Content hashes name ``ratio`` KV blocks each (a trace may hash 512 tokens where blocks hold 64).
    Blocks past ``num_known`` hold tokens that no other request can name; their keys are private to
    the request, so that only itself finds them again, after a preemption.
    """

    request_id: int
    hashes: tuple[int, ...]
    ratio: int
    num_known: int

    def keys(self, first: int, end: int) -> list[int]:
        """Return the keys of the blocks at the indices ``[first, end)`` of the block table."""
        known = min(self.num_known, end)
        hashes, ratio = self.hashes, self.ratio
        private = self.request_id * _PRIVATE_SPAN + 1
        named = [hashes[i // ratio] * ratio + i % ratio for i in range(first, known)]
        return named + [-(private + i) for i in range(max(first, known), end)]


def block_keys(
    request_id: int,
    hashes: tuple[int, ...],
    *,
    num_prompt_tokens: int,
    hash_block_tokens: int,
    block_size: int,
) -> BlockKeys:
    """Return the keys of a request.

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
    return BlockKeys(request_id, hashes, hash_block_tokens // block_size, known // block_size)


def _num_distinct(hashes: tuple[int, ...]) -> int:
    """Return how many hashes come before one that stands there already: no prefix is its own."""
    seen: set[int] = set()
    for position, key in enumerate(hashes):
        if key in seen:
            return position
        seen.add(key)
    return len(hashes)
