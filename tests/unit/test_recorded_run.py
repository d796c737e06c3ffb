"""Recorded runs: arrivals, what was measured, and every row that cannot be used."""

import json
from pathlib import Path

import pytest

from kvfabric.errors import ConfigError
from kvfabric.workload.read import read_trace, trace_format_of
from kvfabric.workload.recorded_run import MeasuredRequest, parse_recorded_run, read_recorded_run

FIRST = {
    "request_id": "bench-0", "input_toks": 20, "output_toks": 5, "arrival_time": 1_700_000_000.25,
    "queued_ts": 100.5, "scheduled_ts": 100.75, "first_token_ts": 101.0, "last_token_ts": 102.0,
}  # fmt: skip
SECOND = {"input_toks": 30, "output_toks": 1, "arrival_time": 1_700_000_001.75}


def lines(*rows: object) -> list[tuple[int, str]]:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return list(enumerate(texts, start=1))


def test_requests_are_counted_from_the_first_arrival() -> None:
    run = parse_recorded_run(lines(FIRST, "", SECOND), name="run")
    assert [spec.arrival_ns for spec in run.workload.requests] == [0, 1_500_000_000]
    assert [spec.num_prompt_tokens for spec in run.workload.requests] == [20, 30]
    assert run.workload.num_rows == 2


def test_client_asked_for_exactly_the_tokens_it_got() -> None:
    run = parse_recorded_run(lines(FIRST, SECOND), name="run")
    assert [spec.max_tokens for spec in run.workload.requests] == [5, 1]


def test_instants_of_the_engine_are_counted_from_its_first_queued_one() -> None:
    run = parse_recorded_run(lines(FIRST, SECOND), name="run")
    assert run.measured == (
        MeasuredRequest(
            request_id=0,
            queued_ns=0,
            scheduled_ns=250_000_000,
            first_token_ns=500_000_000,
            last_token_ns=1_500_000_000,
            num_output_tokens=5,
        ),
    )


def test_rows_are_sorted_by_arrival_and_measured_ones_keep_their_request() -> None:
    run = parse_recorded_run(lines(SECOND, FIRST), name="run")
    assert [spec.num_prompt_tokens for spec in run.workload.requests] == [20, 30]
    assert [measured.request_id for measured in run.measured] == [0]


def test_bad_row_that_is_skipped_shifts_nothing() -> None:
    bad = {**SECOND, "output_toks": 0, "arrival_time": 1_700_000_000.0}
    run = parse_recorded_run(lines(bad, SECOND, FIRST), name="run", on_bad_rows="skip")
    assert [row.line for row in run.workload.bad_rows] == [1]
    assert run.workload.requests[0].num_prompt_tokens == 20
    assert run.measured[0].request_id == 0


BAD = {
    "no object": ("[1]", "not a JSON object"),
    "no arrival": ({"input_toks": 1, "output_toks": 1}, "arrival_time is missing"),
    "no prompt": ({"output_toks": 1, "arrival_time": 1}, "input_toks is missing"),
    "text for a time": ({**SECOND, "arrival_time": "now"}, "arrival_time is 'now'"),
    "true for a time": ({**SECOND, "arrival_time": True}, "arrival_time is True"),
    "no number": ({**SECOND, "arrival_time": float("nan")}, "arrival_time is nan"),
    "negative time": ({**SECOND, "arrival_time": -1}, "arrival_time is -1"),
    "huge number": ({**SECOND, "arrival_time": 10**400}, "arrival_time is 1000"),
    "half a token": ({**SECOND, "input_toks": 1.5}, "input_toks is not a whole number"),
    "end before begin": ({**FIRST, "last_token_ts": 100.0}, "does not hold"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_row_is_refused_with_its_line(case: str) -> None:
    row, message = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        parse_recorded_run(lines(FIRST, row), name="run.jsonl")
    assert caught.value.where == "run.jsonl: line 2"


def test_longer_than_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="exceed 24"):
        parse_recorded_run(lines(FIRST), name="run", max_model_len=24)


def test_file_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="no rows"):
        parse_recorded_run([], name="run")


def test_file_is_recognised_by_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(f"\n{json.dumps(FIRST)}\n{json.dumps(SECOND)}\n")
    assert trace_format_of(path) == "recorded_run"
    assert read_trace(path) == read_recorded_run(path).workload
