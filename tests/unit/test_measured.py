"""Measured beside simulated: differences, windows, and what cannot be compared."""

from dataclasses import replace

import pytest

from kvfabric.errors import ConfigError
from kvfabric.plan.measured import MeasuredComparison, compare_with_measured
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.workload.recorded_run import MeasuredRequest

MS = 1_000_000


def real(
    request_id: int, *, start_ms: int, first_ms: int = 10, num_tokens: int = 5
) -> MeasuredRequest:
    return MeasuredRequest(
        request_id=request_id,
        queued_ns=start_ms * MS,
        scheduled_ns=(start_ms + 1) * MS,
        first_token_ns=(start_ms + first_ms) * MS,
        last_token_ns=(start_ms + 50) * MS,
        num_output_tokens=num_tokens,
    )


def simulated(request_id: int, *, start_ms: int, first_ms: int) -> RequestRecord:
    first_ns = (start_ms + first_ms) * MS
    return RequestRecord(
        request_id=request_id,
        outcome=Outcome.FINISHED,
        arrival_ns=(start_ms - 2) * MS,
        routed_ns=(start_ms - 2) * MS,
        queued_ns=start_ms * MS,
        prefill_start_ns=start_ms * MS,
        prefill_end_ns=first_ns,
        reserved_ns=first_ns,
        transferred_ns=first_ns,
        first_token_ns=first_ns,
        finished_ns=(start_ms + 50) * MS,
        num_prompt_tokens=8,
        num_output_tokens=5,
    )


MEASURED = tuple(real(i, start_ms=10 * i) for i in range(4))
RECORDS = tuple(simulated(i, start_ms=10 * i, first_ms=11) for i in range(4))


def by_name(comparison: MeasuredComparison) -> dict[str, float | None]:
    return {figure.name: figure.error for figure in comparison.figures}


def test_latencies_start_when_the_engine_reads_the_request() -> None:
    (comparison,) = compare_with_measured(RECORDS, MEASURED, max_num_seqs=9)
    assert by_name(comparison) == {
        "TTFT mean": pytest.approx(0.1),
        "TTFT p50": pytest.approx(0.1),
        "TTFT p90": pytest.approx(0.1),
        "TTFT p99": pytest.approx(0.1),
        "TPOT mean": pytest.approx(-0.025),
        "TPOT p99": pytest.approx(-0.025),
        "E2E mean": 0,
        "E2E p99": 0,
        "makespan": 0,
    }


def test_second_window_ends_before_the_batch_was_full() -> None:
    """Requests run from 1 to 50 ms after 0, 10, 20 and 30 ms: three at once from the third on."""
    everything, before = compare_with_measured(RECORDS, MEASURED, max_num_seqs=3)
    assert (everything.first, everything.last, everything.num_requests) == (0, 3, 4)
    assert (before.first, before.last, before.num_requests) == (0, 1, 2)
    assert before.why == "before 3 ran at once"


def test_batch_of_one_is_full_at_once_and_leaves_no_window() -> None:
    assert len(compare_with_measured(RECORDS, MEASURED, max_num_seqs=1)) == 1


def test_window_can_be_asked_for() -> None:
    _, window = compare_with_measured(RECORDS, MEASURED, max_num_seqs=9, window=(1, 2))
    assert (window.first, window.last, window.num_requests) == (1, 2, 2)


def test_window_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="Measured are 0 to 3"):
        compare_with_measured(RECORDS, MEASURED, max_num_seqs=9, window=(7, 9))


def test_request_that_did_not_finish_here_is_left_out_and_counted() -> None:
    lost = replace(RECORDS[0], outcome=Outcome.ABORTED, finished_ns=None)
    (comparison,) = compare_with_measured((lost, *RECORDS[1:]), MEASURED, max_num_seqs=9)
    assert comparison.num_requests == 3


def test_run_without_measured_times_is_not_compared() -> None:
    assert compare_with_measured(RECORDS, (), max_num_seqs=9) == ()


def test_single_token_has_no_tpot() -> None:
    (comparison,) = compare_with_measured(
        RECORDS[:1], (real(0, start_ms=0, num_tokens=1),), max_num_seqs=9
    )
    assert by_name(comparison)["TPOT mean"] is None
