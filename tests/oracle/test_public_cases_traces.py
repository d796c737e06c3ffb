"""Public bug reports about traces of requests: the small input and the right answer.

Each test names its source. The ids are those of the project's collection of cases.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from clusters import Cluster, ConstantNetwork, build, workload_of

from kvfabric.errors import ConfigError
from kvfabric.kvcache.block_keys import block_keys
from kvfabric.metrics.summary import summarize
from kvfabric.protocol.record import Outcome
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.azure import parse_azure
from kvfabric.workload.burstgpt import parse_burstgpt, read_burstgpt
from kvfabric.workload.mooncake import parse_mooncake
from kvfabric.workload.read import read_trace
from kvfabric.workload.rescale import mean_rate_per_s, take_window, unlike_whole
from kvfabric.workload.row_policy import BadRowPolicy

# ---------------------------------------------------------------------- BurstGPT

HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
LATER_HEADER = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)


def burstgpt(
    *rows: str, header: str = HEADER, on_bad_rows: BadRowPolicy = "skip", max_len: int | None = None
) -> Workload:
    return parse_burstgpt(
        enumerate((header, *rows), start=1),
        name="b.csv",
        on_bad_rows=on_bad_rows,
        max_model_len=max_len,
    )


def test_tr_1_failed_requests_are_marked_not_served() -> None:
    """tr-1 https://github.com/HPMLL/BurstGPT/issues/11: rows with zero tokens are requests that
    failed; they are dropped and listed, so that nobody counts them."""
    workload = burstgpt(
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,0,1087,Conversation log",
        "46,GPT-4,0,0,0,API log",
        "118,GPT-4,417,276,693,Conversation log",
    )
    lengths = [(r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]
    assert lengths == [(472, 18), (417, 276)]
    assert [(bad.line, bad.reason) for bad in workload.bad_rows] == [
        (3, "1087 request and 0 response tokens: the request failed"),
        (4, "0 request and 0 response tokens: the request failed"),
    ]
    assert workload.num_rows == 4


def test_tr_1_file_with_failed_requests_is_refused_unless_they_are_skipped() -> None:
    """tr-1: nothing is dropped without being told to."""
    with pytest.raises(ConfigError, match=r"line 2: 7 request and 0 response .* on_bad_rows: skip"):
        burstgpt("1,m,7,0,7,x", "2,m,7,1,8,x", on_bad_rows="refuse")


def test_tr_1_idle_head_is_told() -> None:
    """tr-1: the first 400 bins of 180 s of BurstGPT_1.csv have 0.0343 requests/s, later ones
    3.1713: what is compared on that head shows no differences. Here both rates, for less time."""
    head = [f"{i / 0.0343:.6f},m,10,10,20,x" for i in range(20)]
    body = [f"{20 / 0.0343 + i / 3.1713:.6f},m,10,10,20,x" for i in range(4000)]
    whole = burstgpt(*head, *body)
    part = take_window(whole, 0, round(19.5 / 0.0343 * NS_PER_S))
    assert len(part.requests) == 20
    warning = unlike_whole(part, whole)
    assert warning is not None
    assert "0.0343 requests/s" in warning
    later = take_window(whole, round(20 / 0.0343 * NS_PER_S))
    assert mean_rate_per_s(later.requests) == pytest.approx(3.1713, rel=1e-4)
    assert unlike_whole(later, whole) is None


def test_burstgpt_has_no_reuse_data_and_keeps_its_decimals() -> None:
    workload = burstgpt("0.25,m,3,4,7,x", "1.0000000019,m,3,4,7,x", "2.,m,3,4,7,x")
    assert [r.arrival_ns for r in workload.requests] == [250_000_000, 1_000_000_001, 2 * NS_PER_S]
    assert workload.hash_block_tokens == 0
    assert all(request.block_hashes == () for request in workload.requests)


def test_burstgpt_reads_the_later_columns_too() -> None:
    workload = burstgpt("7,12,1.5,ChatGPT,30,4,34,Conversation log", header=LATER_HEADER)
    (request,) = workload.requests
    assert (request.arrival_ns, request.num_prompt_tokens) == (7 * NS_PER_S, 30)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,m,1,2,3,l", "Timestamp is not a number of seconds: 'x'"),
        ("-1,m,1,2,3,l", "Timestamp is not a number of seconds: '-1'"),
        ("1e3,m,1,2,3,l", "Timestamp is not a number of seconds: '1e3'"),
        ("nan,m,1,2,3,l", "Timestamp is not a number of seconds: 'nan'"),
        ("4,m,1,2,3,l", "time goes back by 1000000000 ns"),
        ("6,m,-1,2,1,l", "Request tokens is negative: -1"),
        ("6,m,1.5,2,3,l", "Request tokens is not a whole number: 1.5"),
        ("6,m,1,,1,l", "Response tokens is not a number: ''"),
        ("6,m,1,2,3", "5 columns where the header has 6"),
        ("6,m,99,2,101,l", "prompt of 99 and output of 2 tokens together exceed 100"),
    ],
)
def test_burstgpt_names_what_is_wrong_with_a_row(row: str, reason: str) -> None:
    (bad,) = burstgpt("5,m,1,2,3,l", row, max_len=100).bad_rows
    assert bad.line == 3
    assert bad.reason.startswith(reason)


def test_burstgpt_refuses_a_header_without_its_columns() -> None:
    with pytest.raises(ConfigError, match="lacks Request tokens, Response tokens"):
        burstgpt("1,2,3", header="Timestamp,Request,Response")


def test_burstgpt_is_known_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}\n5,ChatGPT,472,18,490,Conversation log\n", encoding="utf-8")
    assert read_trace(path) == read_burstgpt(path)
    assert read_trace(path, trace_format="burstgpt").requests[0].num_prompt_tokens == 472


# ---------------------------------------------------------------------- Mooncake


def row_of(timestamp: int, input_length: int, *hash_ids: int) -> str:
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": 3,
            "hash_ids": list(hash_ids),
        }
    )


def mooncake(
    *rows: str, on_bad_rows: BadRowPolicy = "skip", max_len: int | None = None
) -> Workload:
    return parse_mooncake(
        enumerate(rows, start=1), name="m.jsonl", on_bad_rows=on_bad_rows, max_model_len=max_len
    )


@pytest.mark.parametrize(
    ("input_length", "is_right"),
    [(1536, False), (1537, True), (1700, True), (2048, True), (2049, False)],
)
def test_tr_3_four_ids_of_512_mean_1537_to_2048_tokens(
    input_length: int, *, is_right: bool
) -> None:
    """tr-3 https://github.com/ai-dynamo/aiperf/pull/581: the last id names what is left, which is
    at least one token and at most a whole block."""
    good = row_of(0, 5, 900)
    workload = mooncake(good, row_of(1, input_length, 1, 2, 3, 4))
    assert len(workload.requests) == 1 + is_right
    assert len(workload.bad_rows) == 1 - is_right


@pytest.mark.parametrize(("input_length", "ids"), [(20, (0, 1)), (600, (1, 2, 3, 4)), (600, (1,))])
def test_tr_3_ids_for_more_or_fewer_tokens_than_there_are_make_a_bad_row(
    input_length: int, ids: Sequence[int]
) -> None:
    """tr-3; https://github.com/vllm-project/guidellm/pull/948 wrote two ids for 20 tokens. Taken at
    their word, ids past the prompt would be hits on tokens that were never computed."""
    workload = mooncake(row_of(0, 5, 900), row_of(1, input_length, *ids))
    (bad,) = workload.bad_rows
    assert bad.reason == f"hash_ids has {len(ids)} ids for {input_length} input tokens"


def test_tr_3_last_id_covers_only_the_tokens_that_are_left() -> None:
    """tr-3: of 1,537 tokens the fourth id names one, which fills no block."""
    keys = block_keys(1, (1, 2, 3, 4), num_prompt_tokens=1537, hash_block_tokens=512, block_size=16)
    assert keys.num_known == 1536 // 16


def test_tr_4_file_is_replayed_whole_and_in_order() -> None:
    """tr-4 https://github.com/ai-dynamo/aiperf/pull/273: without a flag, ten requests were drawn at
    random from the file. Right: exactly the file, in its order."""
    rows = [row_of(10 * i, 1 + 37 * i % 500, i) for i in range(300)]
    workload = mooncake(*rows)
    assert len(workload.requests) == workload.num_rows == 300
    assert [r.request_id for r in workload.requests] == list(range(300))
    assert [r.arrival_ns for r in workload.requests] == [10_000_000 * i for i in range(300)]
    assert [r.num_prompt_tokens for r in workload.requests] == [
        1 + 37 * i % 500 for i in range(300)
    ]


def test_tr_4_equal_rows_are_all_replayed() -> None:
    """tr-4: a request that is asked twice at the same time is two requests."""
    assert len(mooncake(*[row_of(0, 5, 1)] * 7).requests) == 7


def test_px_8_ids_of_contents_alone_are_no_prefixes() -> None:
    """px-8 https://github.com/vllm-project/aibrix/issues/2329: h1 h9 and h2 h9 share no prefix.

    A file that hashes each block by itself has such rows (two of the Qwen-Bailian traces do: 0.17 %
    and 1.42 % of the blocks that seem to be hit cannot be,
    https://huggingface.co/datasets/maxbromberg/flux-traces/discussions/1). They are told, not hit.
    """
    workload = mooncake(
        row_of(0, 1024, 1, 9), row_of(1, 1024, 2, 9), row_of(2, 1024, 9, 1), row_of(3, 1024, 1, 9)
    )
    assert [bad.reason for bad in workload.bad_rows] == [
        "hash_ids has 9 after 2, an earlier row has it after 1",
        "hash_ids has 9 at the start, an earlier row has it after 1",
    ]
    assert [request.block_hashes for request in workload.requests] == [(1, 9), (1, 9)]


def test_px_8_chained_ids_are_accepted_in_any_order() -> None:
    """px-8: branches of one tree, the longer first or last."""
    rows = [(1,), (1, 2, 3), (1, 2), (1, 4, 5), (6, 7), (1, 2, 3, 8)]
    workload = mooncake(*(row_of(i, 512 * len(ids), *ids) for i, ids in enumerate(rows)))
    assert [request.block_hashes for request in workload.requests] == rows
    assert not workload.bad_rows


# ---------------------------------------------------------------------- any trace


def test_px_11_trace_without_reuse_data_has_none_rather_than_a_guess() -> None:
    """px-11 https://github.com/Azure/AzurePublicDataset/issues/53: the Azure traces have lengths
    only. The hit rate is unknown; here such a workload says that it has no hashes, and its requests
    share nothing."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:15:4{i}.0000000,40,4" for i in range(5)]
    workload = parse_azure(enumerate(lines, start=1), name="a.csv")
    assert workload.hash_block_tokens == 0
    records = build(Cluster(), workload, ConstantNetwork()).run().records
    assert [record.num_cached_tokens for record in records] == [0] * 5


def turns_of(num_sessions: int, num_turns: int) -> list[RequestSpec]:
    """Return sessions whose turns grow; ids go turn by turn, so they end in another order."""
    specs: list[RequestSpec] = []
    for turn in range(num_turns):
        for session in range(num_sessions):
            request_id = turn * num_sessions + session
            specs.append(
                RequestSpec(
                    request_id=request_id,
                    arrival_ns=100 * session,
                    num_prompt_tokens=10 + 9 * turn + session,
                    num_output_tokens=1 + (7 * session) % 13,
                    after_request_id=request_id - num_sessions if turn else None,
                    think_ns=50,
                )
            )
    return specs


def test_tr_6_figures_belong_to_request_ids_not_to_the_order_of_ends() -> None:
    """tr-6 https://github.com/sgl-project/sglang/pull/12603: in conversations of several rounds,
    answers come in another order than the rows, and figures were filed under the wrong row."""
    specs = turns_of(8, 5)
    cluster = Cluster(num_decode=1, num_blocks=120)
    records = build(cluster, workload_of(specs), ConstantNetwork()).run(check=True).records
    assert [record.request_id for record in records] == [spec.request_id for spec in specs]
    ends = [record.finished_ns or 0 for record in records]
    assert ends != sorted(ends)
    for spec, record in zip(specs, records, strict=True):
        assert record.outcome is Outcome.FINISHED
        assert record.num_prompt_tokens == spec.num_prompt_tokens
        assert record.num_output_tokens == spec.num_output_tokens
        if spec.after_request_id is not None:
            end_ns = records[spec.after_request_id].finished_ns
            assert end_ns is not None
            assert record.arrival_ns == end_ns + spec.think_ns


def test_tr_6_figures_do_not_depend_on_the_order_of_records() -> None:
    records = build(Cluster(), workload_of(turns_of(8, 5)), ConstantNetwork()).run().records
    assert summarize(records, num_gpus=2) == summarize(records[::-1], num_gpus=2)


@pytest.mark.parametrize("num_decode", [0, 1])
def test_tr_7_prompts_longer_than_the_model_are_rejected_without_a_trace(num_decode: int) -> None:
    """tr-7 https://github.com/vllm-project/vllm/issues/27073: several prompts above max_model_len;
    all rejected, and the KV cache is empty afterwards."""
    specs = [
        RequestSpec(
            request_id=i,
            arrival_ns=500 * i,
            num_prompt_tokens=(20, 100, 101, 5000)[i % 4],
            num_output_tokens=5,
        )
        for i in range(40)
    ]
    cluster = Cluster(num_decode=num_decode, max_model_len=100)
    simulation = build(cluster, workload_of(specs), ConstantNetwork())
    outcomes = [record.outcome for record in simulation.run(check=True).records]
    assert outcomes == [Outcome.FINISHED, *[Outcome.REJECTED] * 3] * 10
    assert simulation.num_held_blocks == 0


def test_tr_7_rows_longer_than_the_model_are_told_when_the_file_is_read() -> None:
    """tr-7: before anything runs, row by row."""
    workload = mooncake(
        row_of(0, 90, 1), row_of(1, 100, 2), row_of(2, 5000, *range(10, 20)), max_len=100
    )
    assert [bad.line for bad in workload.bad_rows] == [2, 3]
