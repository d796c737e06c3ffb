"""From the content hashes of a workload to one key per KV block."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.kvcache.block_keys import BlockKeys, block_keys


def keys_of(
    *hashes: int,
    request_id: int = 3,
    num_prompt_tokens: int = 1024,
    hash_block_tokens: int = 512,
    block_size: int = 64,
) -> BlockKeys:
    return block_keys(
        request_id,
        hashes,
        num_prompt_tokens=num_prompt_tokens,
        hash_block_tokens=hash_block_tokens,
        block_size=block_size,
    )


def test_one_hash_names_as_many_blocks_as_it_covers() -> None:
    assert keys_of(5, 9).ratio == 8
    assert len(set(keys_of(5, 9).keys(0, 16))) == 16


def test_equal_hashes_give_equal_keys_to_different_requests() -> None:
    assert keys_of(5, 9).keys(0, 16) == keys_of(5, 9, request_id=4).keys(0, 16)


def test_keys_of_different_hashes_never_meet() -> None:
    seen = [key for first in range(20) for key in keys_of(first, num_prompt_tokens=512).keys(0, 8)]
    assert len(set(seen)) == len(seen)


def test_keys_do_not_depend_on_where_a_range_is_cut() -> None:
    keys = keys_of(5, 9, num_prompt_tokens=900)
    assert keys.keys(0, 30) == [key for i in range(30) for key in keys.keys(i, i + 1)]


def test_blocks_past_the_hashes_are_private_to_the_request() -> None:
    mine, other = keys_of(5, 9), keys_of(5, 9, request_id=4)
    assert set(mine.keys(16, 40)).isdisjoint(other.keys(16, 40))


def test_private_keys_never_meet_named_ones() -> None:
    assert set(keys_of(0, 1, request_id=0).keys(16, 40)).isdisjoint(keys_of(0, 1).keys(0, 16))


def test_partial_last_hash_names_only_the_blocks_of_the_prompt() -> None:
    # 700 tokens: the second hash covers 188 of its 512; 10 whole blocks of 64
    assert keys_of(5, 9, num_prompt_tokens=700).num_known == 10


def test_hashes_past_the_prompt_name_blocks_of_the_output() -> None:
    assert keys_of(5, 9, 12, num_prompt_tokens=700).num_known == 24


def test_request_without_hashes_names_nothing() -> None:
    keys = keys_of(hash_block_tokens=0)
    assert keys.num_known == 0
    assert len(set(keys.keys(0, 5))) == 5


def test_block_size_that_does_not_divide_a_hash_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        keys_of(5, 9, block_size=48)


def test_block_larger_than_a_hash_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        keys_of(5, 9, hash_block_tokens=16)


def test_fewer_hashes_than_the_prompt_name_only_what_they_cover() -> None:
    keys = keys_of(5)  # 512 of 1,024 tokens
    assert keys.num_known == 8
    assert len(keys.keys(0, 16)) == 16


def test_keys_that_are_learned_follow_those_that_are_known() -> None:
    keys = keys_of(5)
    before, private = keys.keys(0, 8), keys.keys(8, 9)
    keys.learn([7001, 7002])
    assert keys.num_known == 10
    assert keys.keys(0, 11)[:10] == [*before, 7001, 7002]
    assert keys.keys(8, 9) != private
    nobody = keys_of(hash_block_tokens=0)
    nobody.learn([1])
    assert nobody.keys(0, 1) == [1]
