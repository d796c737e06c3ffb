"""Content hashes of a prompt's KV blocks, so that equal beginnings of prompts find each other."""

from collections.abc import Sequence
from hashlib import blake2b

from kvfabric.kvcache.block_keys import CONTENT_HASH_BITS


def block_hashes(token_ids: Sequence[int], block_size: int, *, key: bytes = b"") -> tuple[int, ...]:
    """Return one hash per full block; equal hashes mean equal tokens there and before.

    Each is the hash of the one before and of the block's token ids, as in vLLM V1.

    Args:
        token_ids: the prompt.
        block_size: tokens per block.
        key: secret of this cluster, at most 64 bytes. With 64 bits of hash, a client who knew it
            could search for two prompts of equal hash and so read what another one has cached.
    """
    hashes: list[int] = []
    before = b""
    for first in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = b"".join(
            [token_id.to_bytes(4, "little") for token_id in token_ids[first : first + block_size]]
        )
        before = blake2b(before + tokens, digest_size=CONTENT_HASH_BITS // 8, key=key).digest()
        hashes.append(int.from_bytes(before, "little"))
    return tuple(hashes)
