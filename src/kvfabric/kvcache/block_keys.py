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

    def key(self, block_idx: int) -> int:
        """Return the key of the block at an index of the block table."""
        if block_idx < self.num_known:
            return self.hashes[block_idx // self.ratio] * self.ratio + block_idx % self.ratio
        return -(self.request_id * _PRIVATE_SPAN + block_idx) - 1


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
    known = num_prompt_tokens if covered - num_prompt_tokens < hash_block_tokens else covered
    return BlockKeys(request_id, hashes, hash_block_tokens // block_size, known // block_size)
