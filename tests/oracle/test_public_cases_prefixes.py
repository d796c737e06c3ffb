"""Public bug reports about prefix caches: the small input and the right answer.

Each test names its source. The ids are those of the project's collection of cases.
"""

import os
import subprocess
import sys

import pytest
from worker_steps import worker_of

from kvfabric.kvcache.block_keys import BlockKeys, block_keys, namespace_id
from kvfabric.kvcache.manager import KVManager
from kvfabric.serving.commands import Prefilled
from kvfabric.serving.router import Router, RoutingPolicy

# ---------------------------------------------------------------------- what counts as a hit


def keys_of(*hashes: int, request_id: int = 1, namespace: int = 0) -> BlockKeys:
    return block_keys(
        request_id,
        hashes,
        num_prompt_tokens=16 * len(hashes),
        hash_block_tokens=16,
        block_size=16,
        namespace=namespace,
    )


def caching(*prompts: BlockKeys) -> KVManager:
    """Return a manager that has computed prompts of full blocks of 16 and given them back."""
    manager = KVManager(64, 16)
    for request_id, keys in enumerate(prompts):
        num_tokens = 16 * len(keys.hashes)
        manager.admit(request_id, manager.find_prefix(keys, num_tokens), num_tokens)
        manager.remember(request_id, keys, 0, num_tokens)
        manager.release(request_id)
    return manager


def num_hits(manager: KVManager, keys: BlockKeys) -> int:
    """Return the blocks hit by a prompt that goes on after its hashes."""
    return len(manager.find_prefix(keys, 16 * len(keys.hashes) + 1))


def test_px_1_prefix_shorter_than_a_block_cannot_hit() -> None:
    """px-1 https://github.com/vllm-project/vllm/issues/54607: 240 shared tokens in blocks of 784
    give a hit rate of 0; blocks of 16 share 15 of them."""
    worker = worker_of(4, block_size=784, budget=4096)
    worker.add(1, 1000, 1, hashes=(11, 12))
    worker.drain()
    worker.add(2, 1000, 1, hashes=(21, 22))  # 240 equal tokens do not make the first block equal
    worker.drain()
    cached = [event.num_cached_tokens for event in worker.events if isinstance(event, Prefilled)]
    assert cached == [0, 0]
    shared = range(240 // 16)
    manager = caching(keys_of(*shared, 100, 101))
    assert num_hits(manager, keys_of(*shared, 200, 201)) * 16 == 240


@pytest.mark.parametrize(("block_size", "hit_tokens"), [(544, 3264), (576, 2880)])
def test_px_2_hit_is_the_whole_blocks_of_the_prefix(block_size: int, hit_tokens: int) -> None:
    """px-2 https://github.com/vllm-project/vllm/pull/57467: of a prefix of 3,274 tokens, blocks of
    544 can give 3,264, blocks of 576 only 2,880."""
    shared = range(3274 // block_size)
    worker = worker_of(64, block_size=block_size, budget=8192)
    worker.add(1, 3274, 1, hashes=(*shared, 900))
    worker.drain()
    others = range(1000, 1000 + -(-5000 // block_size) - len(shared))
    worker.add(2, 5000, 1, hashes=(*shared, *others))
    (chunk,) = worker.step().prefill
    assert chunk.num_history_tokens == hit_tokens


def test_px_4_prompt_that_is_cached_whole_computes_its_last_block() -> None:
    """px-4 https://github.com/vllm-project/vllm/pull/11186: exactly k full blocks, all cached: one
    block is computed again, and no block is counted twice."""
    worker = worker_of(20, block_size=16, budget=64)
    worker.add(1, 48, 2, hashes=(1, 2, 3))
    worker.step()
    worker.add(2, 48, 2, hashes=(1, 2, 3))
    plan = worker.step()
    assert [(c.num_history_tokens, c.num_tokens) for c in plan.prefill] == [(32, 16)]
    worker.drain()
    assert worker.num_used == 0


def test_px_5_hit_stops_at_the_first_hole() -> None:
    """px-5 https://github.com/llm-d/llm-d-inference-sim/pull/701: 1, 2 and 3 cached, 1 evicted: the
    useful prefix of 1, 2, 3 is 0 blocks, not 2."""
    manager = caching(keys_of(1, 2, 3))
    block = manager.pool.prefix_cache.get(keys_of(1).keys(0, 1)[0])
    assert block is not None
    manager.pool.prefix_cache.forget([block])
    assert num_hits(manager, keys_of(1, 2, 3)) == 0


def test_px_8_chain_is_compared_not_its_last_block_and_length() -> None:
    """px-8 https://github.com/vllm-project/aibrix/issues/2329: h1 h9 and h2 h9 end alike and are as
    long; they are different prefixes."""
    manager = caching(keys_of(1, 9))
    assert num_hits(manager, keys_of(2, 9)) == 0
    assert num_hits(manager, keys_of(1, 9)) == 2


# ---------------------------------------------------------------------- isolation


def test_px_7_root_of_a_chain_is_no_constant_that_others_can_meet() -> None:
    """px-7 https://github.com/vllm-project/vllm/pull/12621 (GHSA-rm76-4mrf-v9r8): chains began with
    Python's hash of None, a constant since 3.12, so that a prompt could be made to collide.

    Keys here are numbered, not hashed: those of unknown tokens are private to a request.
    """
    unknown = [BlockKeys(request_id, (), 1, 0).keys(0, 50) for request_id in range(50)]
    keys = [key for request in unknown for key in request]
    assert len(set(keys)) == len(keys)
    assert max(keys) < 0 <= min(keys_of(0, 1, 2).keys(0, 3))


def test_px_7_namespace_is_the_same_in_every_process() -> None:
    """px-7: nothing depends on Python's hash, which differs from process to process."""
    program = (
        "from kvfabric.kvcache.block_keys import namespace_id;"
        "print(namespace_id(cache_salt='a', adapter='b'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert outputs == {str(namespace_id(cache_salt="a", adapter="b"))}


NAMESPACES = [
    namespace_id(),
    namespace_id(cache_salt="a"),
    namespace_id(cache_salt="b"),
    namespace_id(adapter="a"),
    namespace_id(cache_salt="a", adapter="b"),
    namespace_id(cache_salt="ab"),
    namespace_id(adapter="ab"),
    namespace_id(cache_salt="1:a"),
]


def test_px_10_no_salt_and_no_adapter_means_one_shared_namespace() -> None:
    assert namespace_id() == 0
    assert keys_of(1, 2, namespace=0) == keys_of(1, 2)


def test_px_10_salts_and_adapters_are_told_apart() -> None:
    """px-10 https://github.com/sgl-project/sglang/pull/24579: equal tokens under salts a and b."""
    assert len(set(NAMESPACES)) == len(NAMESPACES)
    keys = [key for n in NAMESPACES for key in keys_of(0, 1, 2**64 - 1, namespace=n).keys(0, 3)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("other", NAMESPACES[1:])
@pytest.mark.parametrize("namespace", NAMESPACES[:3])
def test_px_10_equal_tokens_hit_in_their_own_namespace_only(namespace: int, other: int) -> None:
    """px-10: the second tenant must not see by a short time to first token what the first asked."""
    manager = caching(keys_of(1, 2, 3, namespace=namespace))
    expected = 3 if namespace == other else 0
    assert num_hits(manager, keys_of(1, 2, 3, request_id=2, namespace=other)) == expected


def test_px_10_router_index_follows_the_namespace() -> None:
    """px-10: events named the same block hash for both salts, so a router sent the second tenant to
    a worker where it could hit nothing."""
    router = Router(RoutingPolicy.PREFIX_AWARE, num_prefill=2, num_decode=0, signal_interval_ns=50)

    def route(interval: int, salt: str) -> int:
        keys = keys_of(1, 2, 3, namespace=namespace_id(cache_salt=salt))
        return router.choose_prefill(48, keys.hashes, 16, 50 * interval)

    assert [route(0, "a"), route(1, "b")] == [0, 1]
    assert [route(2 + i, "b" if i % 3 else "a") for i in range(6)] == [0, 1, 1, 0, 1, 1]


def test_px_10_namespace_follows_a_hash_over_several_blocks() -> None:
    """px-10: 512 tokens a hash, 64 a block: all eight blocks of a hash are isolated."""

    def blocks_of(namespace: int) -> list[int]:
        keys = block_keys(
            1,
            (5, 6),
            num_prompt_tokens=1024,
            hash_block_tokens=512,
            block_size=64,
            namespace=namespace,
        )
        return keys.keys(0, 16)

    assert set(blocks_of(NAMESPACES[1])).isdisjoint(blocks_of(NAMESPACES[2]))
    assert set(blocks_of(NAMESPACES[1])).isdisjoint(blocks_of(0))
