"""Mooncake rows, good and bad, by small files."""

import json

import pytest

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.workload.mooncake import parse_mooncake
from kvfabric.workload.row_policy import BadRowPolicy

Row = dict[str, object]

GOOD: Row = {"timestamp": 20, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}


def parse(
    *rows: Row | str, on_bad_rows: BadRowPolicy = "skip", max_model_len: int | None = None
) -> Workload:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return parse_mooncake(
        enumerate(texts, start=1),
        name="t.jsonl",
        on_bad_rows=on_bad_rows,
        max_model_len=max_model_len,
    )


def test_mooncake_row_becomes_a_request() -> None:
    workload = parse(GOOD)
    assert workload.requests == (
        RequestSpec(
            request_id=0,
            arrival_ns=20_000_000,
            num_prompt_tokens=600,
            num_output_tokens=9,
            block_hashes=(0, 7),
        ),
    )
    assert (workload.hash_block_tokens, workload.num_rows, workload.name) == (512, 1, "t.jsonl")


def test_mooncake_replays_every_row_in_order() -> None:
    # A replay must not sample nor stop early: https://github.com/ai-dynamo/aiperf/pull/273
    rows: list[Row] = [GOOD | {"output_length": n} for n in range(1, 26)]
    assert [r.num_output_tokens for r in parse(*rows).requests] == list(range(1, 26))


@pytest.mark.parametrize("input_length", [1537, 2048])
def test_mooncake_accepts_four_ids_for_the_last_and_first_length(input_length: int) -> None:
    # 4 blocks of 512: lengths 1537 to 2048, https://github.com/ai-dynamo/aiperf/pull/581
    row = GOOD | {"input_length": input_length, "hash_ids": [1, 2, 3, 4]}
    assert len(parse(row).requests[0].block_hashes) == 4


@pytest.mark.parametrize("input_length", [1536, 2049])
def test_mooncake_refuses_four_ids_for_other_lengths(input_length: int) -> None:
    row = GOOD | {"input_length": input_length, "hash_ids": [1, 2, 3, 4]}
    bad = parse(GOOD, row).bad_rows
    assert bad[0].reason == f"hash_ids has 4 ids for {input_length} input tokens"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"timestamp": ' + "9" * 5000 + "}", "not a JSON object"),
        ({"input_length": 600, "output_length": 9}, "timestamp is missing"),
        ({"timestamp": 20, "output_length": 9}, "input_length is missing"),
        ({"timestamp": 20, "input_length": 600}, "output_length is missing"),
        (GOOD | {"timestamp": -1}, "timestamp is negative: -1"),
        (GOOD | {"timestamp": 1.5}, "timestamp is not a whole number: 1.5"),
        (GOOD | {"timestamp": 10**13}, "timestamp is too large: 10000000000000"),
        # failed calls are logged with zero tokens: https://github.com/HPMLL/BurstGPT/issues/11
        (GOOD | {"input_length": 0}, "input_length is zero: 0"),
        (GOOD | {"output_length": 0}, "output_length is zero: 0"),
        (GOOD | {"input_length": -600}, "input_length is negative: -600"),
        (GOOD | {"input_length": float("nan")}, "input_length is not a whole number: nan"),
        (GOOD | {"output_length": float("inf")}, "output_length is not a whole number: inf"),
        (GOOD | {"output_length": 9.0}, "output_length is not a whole number: 9.0"),
        (GOOD | {"output_length": True}, "output_length is not a number: True"),
        (GOOD | {"output_length": "9"}, "output_length is not a number: '9'"),
        (GOOD | {"output_length": None}, "output_length is not a number: None"),
        (GOOD | {"output_length": 10**8}, "output_length is too large: 100000000"),
        (GOOD | {"hash_ids": 5}, "hash_ids is not a list"),
        (GOOD | {"hash_ids": []}, "hash_ids has 0 ids for 600 input tokens"),
        (GOOD | {"hash_ids": [1]}, "hash_ids has 1 ids for 600 input tokens"),
        (GOOD | {"hash_ids": [1, -2]}, "hash_ids[1] is negative: -2"),
        (GOOD | {"hash_ids": [True, 2]}, "hash_ids[0] is not a number: True"),
        (GOOD | {"hash_ids": [1, 2.5]}, "hash_ids[1] is not a whole number: 2.5"),
    ],
)
def test_mooncake_names_what_is_wrong_with_a_row(row: Row | str, reason: str) -> None:
    workload = parse(GOOD, row, GOOD)
    assert [(bad.line, bad.reason) for bad in workload.bad_rows] == [(2, reason)]
    assert (len(workload.requests), workload.num_rows) == (2, 3)


def test_mooncake_refuses_time_that_goes_back() -> None:
    workload = parse(GOOD, GOOD | {"timestamp": 19}, GOOD | {"timestamp": 20})
    assert [bad.reason for bad in workload.bad_rows] == [
        "time goes back by 1000000 ns from the last good row"
    ]


def test_mooncake_without_any_hash_ids_has_no_blocks() -> None:
    row: Row = {"timestamp": 20, "input_length": 600, "output_length": 9}
    workload = parse(row, row | {"hash_ids": None})
    assert (len(workload.requests), workload.hash_block_tokens) == (2, 0)


@pytest.mark.parametrize("place", [0, 1])
def test_mooncake_refuses_missing_hash_ids_wherever_they_stand(place: int) -> None:
    rows: list[Row] = [GOOD]
    rows.insert(place, {"timestamp": 20, "input_length": 600, "output_length": 9})
    workload = parse(*rows)
    assert [bad.line for bad in workload.bad_rows] == [place + 1]
    assert workload.bad_rows[0].reason == "hash_ids is missing, though other rows have it"


def test_mooncake_lists_prompts_longer_than_the_model() -> None:
    # https://github.com/vllm-project/vllm/issues/27073: over-long prompts are rejected, others run
    workload = parse(GOOD, GOOD | {"output_length": 1}, max_model_len=601)
    assert [r.num_output_tokens for r in workload.requests] == [1]
    assert workload.bad_rows[0].reason == (
        "prompt of 600 and output of 9 tokens together exceed 601"
    )


def test_mooncake_tells_a_prompt_without_room_from_an_output_without_room() -> None:
    workload = parse(GOOD | {"input_length": 100, "hash_ids": [1]}, GOOD, max_model_len=600)
    assert workload.bad_rows[0].reason == (
        "prompt of 600 tokens leaves no room for an output token in 600"
    )


def test_mooncake_skips_blank_lines_without_losing_count_of_lines() -> None:
    workload = parse("", GOOD, "  ", "{", "")
    assert (workload.num_rows, workload.bad_rows[0].line) == (2, 4)


def test_mooncake_refuses_the_file_at_its_first_bad_row() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GOOD, GOOD | {"output_length": 0}, "{", on_bad_rows="refuse")
    text = str(caught.value)
    assert text.startswith('t.jsonl: line 2: output_length is zero: 0 in \'{"timestamp": 20')
    assert "1 more of 3 rows are bad" in text
    assert "Write a whole number from 1 to" in text
    assert "on_bad_rows: skip" in text


def test_mooncake_refuses_a_file_of_bad_rows_even_when_skipping() -> None:
    with pytest.raises(ConfigError, match="no row can be used"):
        parse("{", "{")


def test_mooncake_refuses_an_empty_file() -> None:
    with pytest.raises(ConfigError, match=r"t\.jsonl: no rows"):
        parse()


def test_mooncake_keeps_only_the_beginning_of_a_long_bad_row() -> None:
    bad = parse(GOOD, "x" * 10_000).bad_rows[0]
    assert (len(bad.text), bad.text[-3:]) == (120, "...")


def test_mooncake_refuses_an_unknown_policy() -> None:
    with pytest.raises(ConfigError, match="Write 'refuse' or 'skip'"):
        parse(GOOD, on_bad_rows="drop")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("max_model_len", [0, 1, -5, True, 2.5])
def test_mooncake_refuses_an_impossible_model_length(max_model_len: int) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        parse(GOOD, max_model_len=max_model_len)


def test_mooncake_reads_other_block_sizes_when_told() -> None:
    row = {"timestamp": 0, "input_length": 33, "output_length": 1, "hash_ids": [1, 2, 3]}
    workload = parse_mooncake([(1, json.dumps(row))], name="t", hash_block_tokens=16)
    assert workload.hash_block_tokens == 16
