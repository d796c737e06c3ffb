"""How much of a prompt could ever be found in a cache."""

from collections import Counter

from kvfabric.protocol.workload import Workload


def reusable_tokens(workload: Workload, *, is_caching: bool) -> list[int]:
    """Return, per request, the most prompt tokens that any cache could hold before it runs.

    Those of its leading blocks that another request has as well; at least one token is computed.
    """
    if not is_caching or not workload.hash_block_tokens:
        return [0] * len(workload.requests)
    uses = Counter(
        (spec.namespace, block) for spec in workload.requests for block in spec.block_hashes
    )
    found: list[int] = []
    for spec in workload.requests:
        shared = 0
        for block in spec.block_hashes:
            if uses[spec.namespace, block] < 2:
                break
            shared += 1
        tokens = shared * workload.hash_block_tokens
        found.append(min(tokens, spec.num_prompt_tokens - 1))
    return found
