"""Room for hand-offs beside a full decode batch."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.plan.headroom import DecodeHeadroom, decode_headroom
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.config import SchedulerConfig


def headroom(pool_tokens: int, max_num_seqs: int, seq_tokens: int = 100) -> DecodeHeadroom:
    return DecodeHeadroom(pool_tokens=pool_tokens, seq_tokens=seq_tokens, max_num_seqs=max_num_seqs)


@pytest.mark.parametrize(
    ("pool_tokens", "max_num_seqs", "expected"),
    [(1000, 8, 2), (1099, 8, 2), (1100, 8, 3), (1000, 10, 0), (1000, 12, -2), (99, 1, -1)],
)
def test_headroom_counts_whole_sequences(
    pool_tokens: int, max_num_seqs: int, expected: int
) -> None:
    assert headroom(pool_tokens, max_num_seqs).num_seqs == expected


def test_sentence_counts_the_hand_offs_that_have_room() -> None:
    assert "at most 2 hand-offs can be in flight" in headroom(1000, 8).sentence()


@pytest.mark.parametrize("max_num_seqs", [10, 12])
def test_sentence_says_what_to_write_where_there_is_no_room(max_num_seqs: int) -> None:
    text = headroom(1000, max_num_seqs).sentence()
    assert f"max_num_seqs {max_num_seqs} leaves no room for hand-offs in flight" in text
    assert "Write a max_num_seqs below 10" in text


@pytest.mark.parametrize("field", ["seq_tokens", "max_num_seqs"])
def test_nothing_is_no_sequence(field: str) -> None:
    values = {"pool_tokens": 10, "seq_tokens": 1, "max_num_seqs": 1} | {field: 0}
    with pytest.raises(ConfigError, match=field):
        DecodeHeadroom(**values)


CONFIG = SchedulerConfig(
    num_blocks=11, block_size=10, max_num_seqs=3, max_num_batched_tokens=64, max_model_len=100
)


def spec(request_id: int, num_prompt_tokens: int) -> RequestSpec:
    return RequestSpec(
        request_id=request_id,
        arrival_ns=0,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=5,
    )


def test_headroom_of_a_worker_is_for_requests_of_mean_length() -> None:
    found = decode_headroom(CONFIG, [spec(0, 10), spec(1, 20)])
    assert found == DecodeHeadroom(pool_tokens=100, seq_tokens=20, max_num_seqs=3)


def test_no_requests_have_no_headroom() -> None:
    assert decode_headroom(CONFIG, []) is None
