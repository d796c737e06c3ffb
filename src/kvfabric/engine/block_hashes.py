"""Content hashes of KV blocks, so that equal beginnings of prompts find each other."""

from collections.abc import Sequence
from hashlib import blake2b

from kvfabric.kvcache.block_keys import CONTENT_HASH_BITS

_HASH_BYTES = CONTENT_HASH_BITS // 8


class HashChain:
    """Hashes of full blocks, token by token.

    Each is the hash of the one before and of the block's token ids, as in vLLM V1.
    """

    __slots__ = ("_before", "_block_size", "_key", "_pending")

    def __init__(self, block_size: int, key: bytes = b"", before: int | None = None) -> None:
        """Start before the first token, or after the block of a hash; see ``block_hashes``."""
        self._block_size, self._key = block_size, key
        self._before = b"" if before is None else before.to_bytes(_HASH_BYTES, "little")
        self._pending: list[bytes] = []

    def push(self, token_id: int) -> int | None:
        """Take the next token; return the hash of the block that it fills, if it does."""
        self._pending.append(token_id.to_bytes(4, "little"))
        if len(self._pending) < self._block_size:
            return None
        tokens = b"".join(self._pending)
        self._pending.clear()
        hashed = blake2b(self._before + tokens, digest_size=_HASH_BYTES, key=self._key)
        self._before = hashed.digest()
        return int.from_bytes(self._before, "little")


def block_hashes(token_ids: Sequence[int], block_size: int, *, key: bytes = b"") -> tuple[int, ...]:
    """Return one hash per full block; equal hashes mean equal tokens there and before.

    Args:
        token_ids: the prompt.
        block_size: tokens per block.
        key: secret of this cluster, at most 64 bytes. With 64 bits of hash, a client who knew it
            could search for two prompts of equal hash and so read what another one has cached.
    """
    chain = HashChain(block_size, key)
    return tuple(found for found in map(chain.push, token_ids) if found is not None)
