"""Prefix-cache keys that grow with the output, so that a later turn finds what was generated."""

from collections.abc import Sequence

from kvfabric.engine.block_hashes import HashChain
from kvfabric.engine.events import GenerateRequest
from kvfabric.kvcache.block_keys import BlockKeys, block_keys


class GeneratedKeys:
    """Keys of a request's blocks in one worker, those of its output too as soon as they are full.

    A router compares prompts, of which the control has keys of its own. The worker's KV manager
    asks these, of which more and more become known.

    Attributes:
        keys: what the worker's KV manager asks.
        all_hashes: of the full blocks so far, without the namespace.
    """

    __slots__ = ("_chain", "_namespace", "all_hashes", "keys")

    def __init__(self, prompt: BlockKeys, request: GenerateRequest, block_size: int) -> None:
        """Go on from the keys of a prompt."""
        assert request.hash_key is not None, "hashes of nobody's"
        hashes = request.block_hashes
        assert len(hashes) == prompt.num_known == len(request.prompt_ids) // block_size
        self.keys = BlockKeys(prompt.request_id, prompt.hashes, 1, prompt.num_known)
        self.all_hashes = list(hashes)
        self._chain = HashChain(block_size, request.hash_key, hashes[-1] if hashes else None)
        self._namespace = request.namespace
        self.extend(request.prompt_ids[len(hashes) * block_size :])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take the next tokens of prompt or output, which must be in order."""
        for token_id in token_ids:
            found = self._chain.push(token_id)
            if found is None:
                continue
            self.all_hashes.append(found)
            self.keys.learn(_keys(found, self._namespace))


def _keys(content_hash: int, namespace: int) -> list[int]:
    """Return the key of one block, as the control makes it of a prompt's."""
    one = block_keys(
        0,
        (content_hash,),
        num_prompt_tokens=1,
        hash_block_tokens=1,
        block_size=1,
        namespace=namespace,
    )
    return one.keys(0, 1)
