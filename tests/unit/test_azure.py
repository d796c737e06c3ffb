"""Azure rows, good and bad, by small files."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import Workload
from kvfabric.workload.azure import parse_azure
from kvfabric.workload.row_policy import BadRowPolicy

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
FIRST = "2023-11-16 18:15:46.6805900,374,44"


def parse(
    *texts: str,
    header: str = HEADER,
    on_bad_rows: BadRowPolicy = "skip",
    max_model_len: int | None = None,
) -> Workload:
    return parse_azure(
        enumerate((header, *texts), start=1),
        name="t.csv",
        on_bad_rows=on_bad_rows,
        max_model_len=max_model_len,
    )


def test_azure_counts_arrivals_from_the_first_row() -> None:
    # first two rows of AzureLLMInferenceTrace_conv.csv (2023, CC-BY-4.0)
    workload = parse(FIRST, "2023-11-16 18:15:50.9951690,396,109")
    assert [r.arrival_ns for r in workload.requests] == [0, 4_314_579_000]
    assert [r.num_prompt_tokens for r in workload.requests] == [374, 396]
    assert [r.num_output_tokens for r in workload.requests] == [44, 109]
    assert workload.hash_block_tokens == 0


def test_azure_keeps_the_seventh_decimal() -> None:
    workload = parse("2023-11-16 18:15:46.6805900,1,1", "2023-11-16 18:15:46.6805901,1,1")
    assert workload.requests[1].arrival_ns == 100


@pytest.mark.parametrize(
    "second",
    [
        # the form of the 2024 trace
        "2024-05-10 00:00:01.500000+00:00",
        "2024-05-10T00:00:01.5Z",
        "2024-05-10 02:00:01.5+02:00",
        "2024-05-09 19:00:01.500000000-0500",
        "2024-05-10 00:00:01.5",
    ],
)
def test_azure_reads_every_form_of_time(second: str) -> None:
    workload = parse("2024-05-10 00:00:00+00:00,1,1", f"{second},1,1")
    assert workload.requests[1].arrival_ns == 1_500_000_000


def test_azure_crosses_midnight() -> None:
    workload = parse("2023-12-31 23:59:59.9,1,1", "2024-01-01 00:00:00.1,1,1")
    assert workload.requests[1].arrival_ns == 200_000_000


def test_azure_finds_columns_by_name() -> None:
    workload = parse(
        '44,x,374,"2023-11-16 18:15:46"', header="GeneratedTokens,Other,ContextTokens,TIMESTAMP"
    )
    assert (workload.requests[0].num_prompt_tokens, workload.requests[0].num_output_tokens) == (
        374,
        44,
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2023-11-16 18:16:00,1", "2 columns where the header has 3"),
        ("2023-11-16 18:16:00,1,2,3", "4 columns where the header has 3"),
        ("yesterday,1,2", "TIMESTAMP is not a time: 'yesterday'"),
        ("1700158546,1,2", "TIMESTAMP is not a time: '1700158546'"),
        ("2023-02-30 18:16:00,1,2", "TIMESTAMP is not a time (day"),
        ("2023-11-16 18:16:60,1,2", "TIMESTAMP is not a time (second"),
        (",1,2", "TIMESTAMP is not a time: ''"),
        ("2023-11-16 18:15:46,1,2", "time goes back by 680590000 ns"),
        ("2023-11-16 18:16:00,0,2", "ContextTokens is zero: 0"),
        ("2023-11-16 18:16:00,1,0", "GeneratedTokens is zero: 0"),
        ("2023-11-16 18:16:00,-1,2", "ContextTokens is negative: -1"),
        ("2023-11-16 18:16:00,1.5,2", "ContextTokens is not a whole number: 1.5"),
        ("2023-11-16 18:16:00,nan,2", "ContextTokens is not a whole number: nan"),
        ("2023-11-16 18:16:00,inf,2", "ContextTokens is not a whole number: inf"),
        ("2023-11-16 18:16:00,1_0,2", "ContextTokens is not a whole number: 10.0"),
        ("2023-11-16 18:16:00,,2", "ContextTokens is not a number: ''"),
        ("2023-11-16 18:16:00,True,2", "ContextTokens is not a number: 'True'"),
        ("2023-11-16 18:16:00,1,99999999", "GeneratedTokens is too large: 99999999"),
        ("x" * 200_000 + ",1,2", "not a CSV row"),
    ],
)
def test_azure_names_what_is_wrong_with_a_row(row: str, reason: str) -> None:
    workload = parse(FIRST, row, FIRST)
    assert [bad.line for bad in workload.bad_rows] == [3]
    assert workload.bad_rows[0].reason.startswith(reason)
    assert (len(workload.requests), workload.num_rows) == (2, 3)


def test_azure_counts_from_the_first_good_row_when_skipping() -> None:
    workload = parse("2023-11-16 18:15:40,0,5", FIRST)
    assert workload.requests[0].arrival_ns == 0


def test_azure_counts_the_header_as_line_one() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(FIRST, "2023-11-16 18:16:00,0,2", on_bad_rows="refuse")
    assert str(caught.value).startswith("t.csv: line 3: ContextTokens is zero: 0")


@pytest.mark.parametrize("header", [FIRST, "TIMESTAMP,ContextTokens", HEADER + ",TIMESTAMP"])
def test_azure_refuses_a_header_without_the_columns(header: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv: line 1: the header .* lacks"):
        parse(FIRST, header=header)


def test_azure_refuses_a_header_alone() -> None:
    with pytest.raises(ConfigError, match="no rows"):
        parse()


def test_azure_refuses_an_empty_file() -> None:
    with pytest.raises(ConfigError, match="the file is empty"):
        parse_azure([], name="t.csv")


def test_azure_lists_rows_longer_than_the_model() -> None:
    workload = parse(FIRST, "2023-11-16 18:16:00,400,1", max_model_len=418)
    assert len(workload.bad_rows) == 0
    workload = parse(FIRST, "2023-11-16 18:16:00,400,1", max_model_len=417)
    assert [bad.line for bad in workload.bad_rows] == [2]
