"""The figures of a run: windows, rates, counts, and what an empty run says."""

import json

import pytest

from kvfabric.errors import ConfigError
from kvfabric.metrics.latency import Slo
from kvfabric.metrics.summary import summarize, summary_to_dict
from kvfabric.protocol.record import Outcome, RequestRecord

MS = 1_000_000


def finished(
    request_id: int, arrival_ms: int, queue_ms: int, num_output: int = 11
) -> RequestRecord:
    """Return an aggregated request: queue, 100 ms of prefill, then 10 ms per token."""
    start = arrival_ms + queue_ms
    first = start + 100
    return RequestRecord(
        request_id=request_id,
        outcome=Outcome.FINISHED,
        arrival_ns=arrival_ms * MS,
        routed_ns=arrival_ms * MS,
        prefill_start_ns=start * MS,
        prefill_end_ns=first * MS,
        reserved_ns=first * MS,
        transferred_ns=first * MS,
        first_token_ns=first * MS,
        finished_ns=(first + 10 * (num_output - 1)) * MS,
        num_prompt_tokens=1000,
        num_output_tokens=num_output,
        num_cached_tokens=250,
        num_preemptions=1,
        transfer_bytes=7,
    )


def dropped(request_id: int, arrival_ms: int, outcome: Outcome) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        outcome=outcome,
        arrival_ns=arrival_ms * MS,
        num_prompt_tokens=1000,
        num_output_tokens=0,
    )


# arrivals at 0 and 300 ms; finishes at 200 and 1000 ms: a window of exactly one second
TWO = (finished(0, 0, 0), finished(1, 300, 500))


def test_summarize_an_empty_run_has_no_figures() -> None:
    summary = summarize([], num_gpus=8, slo=Slo(ttft_ns=1))
    assert summary.counts.arrived == 0
    assert summary.ttft.p50_ns is None
    assert summary.rates.requests_per_s is None
    assert summary.rates.slo_share is None
    assert summary.ttft_split_p99 is None
    assert summary.warnings == ()


def test_summarize_a_run_where_nothing_finished_has_counts_only() -> None:
    records = [dropped(0, 0, Outcome.REJECTED), dropped(1, 5, Outcome.UNFINISHED)]
    summary = summarize(records, num_gpus=1, slo=Slo(ttft_ns=1))
    assert (summary.counts.rejected, summary.counts.unfinished) == (1, 1)
    assert (summary.window_ns, summary.rates.goodput_per_s) == (0, None)
    assert summary.rates.slo_share == 0.0


def test_summarize_measures_the_window_from_first_arrival_to_last_finish() -> None:
    assert summarize(TWO, num_gpus=1).window_ns == 1000 * MS


def test_summarize_counts_an_early_rejected_arrival_into_the_window() -> None:
    late = (finished(1, 300, 500), dropped(0, 0, Outcome.REJECTED))
    assert summarize(late, num_gpus=1).window_ns == 1000 * MS


def test_summarize_gives_rates_over_the_window() -> None:
    rates = summarize(TWO, num_gpus=4).rates
    assert rates.requests_per_s == pytest.approx(2.0)
    assert rates.output_tokens_per_s == pytest.approx(22.0)
    assert rates.output_tokens_per_s_per_gpu == pytest.approx(5.5)
    assert rates.total_tokens_per_s == pytest.approx(2022.0)


def test_summarize_has_no_goodput_without_targets() -> None:
    assert summarize(TWO, num_gpus=4).rates.goodput_per_s is None


def test_summarize_counts_only_requests_within_targets_as_goodput() -> None:
    rates = summarize(TWO, num_gpus=4, slo=Slo(ttft_ns=100 * MS, tpot_ns=10 * MS)).rates
    assert rates.goodput_per_s == pytest.approx(1.0)
    assert rates.goodput_per_s_per_gpu == pytest.approx(0.25)
    assert rates.slo_share == pytest.approx(0.5)


def test_summarize_holds_rejected_requests_against_the_slo_share() -> None:
    # Prompts longer than the model are rejected, and told as such:
    # https://github.com/vllm-project/vllm/issues/27073
    records = [*TWO, dropped(2, 400, Outcome.REJECTED), dropped(3, 400, Outcome.REJECTED)]
    summary = summarize(records, num_gpus=1, slo=Slo(ttft_ns=10**12))
    assert summary.rates.slo_share == pytest.approx(0.5)
    assert (summary.counts.arrived, summary.counts.rejected) == (4, 2)
    assert summary.ttft.num_samples == 2


def test_summarize_takes_latencies_of_finished_requests() -> None:
    summary = summarize(TWO, num_gpus=1)
    assert (summary.ttft.p50_ns, summary.ttft.p99_ns) == (100 * MS, 600 * MS)
    assert summary.ttft.mean_ns == 350 * MS
    assert summary.tpot.p50_ns == 10 * MS
    assert summary.e2e.p99_ns == 700 * MS


def test_summarize_leaves_single_tokens_out_of_tpot() -> None:
    assert summarize([*TWO, finished(2, 0, 0, num_output=1)], num_gpus=1).tpot.num_samples == 2


def test_summarize_splits_the_slowest_apart_from_the_mean() -> None:
    summary = summarize(TWO, num_gpus=1)
    assert summary.ttft_split_mean is not None
    assert summary.ttft_split_p99 is not None
    assert summary.ttft_split_mean.prefill_queue_ns == 250 * MS
    assert summary.ttft_split_p99.prefill_queue_ns == 500 * MS


def test_summarize_adds_up_totals() -> None:
    summary = summarize(TWO, num_gpus=1)
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (2000, 22)
    assert (summary.num_cached_tokens, summary.num_preemptions) == (500, 2)
    assert summary.transfer_bytes == 14


def test_summarize_warns_of_percentiles_from_few_samples() -> None:
    assert summarize(TWO, num_gpus=1).warnings[0] == "TTFT p50 from 2 samples; 20 are needed"


def test_summarize_is_silent_with_enough_samples() -> None:
    assert summarize([finished(i, i, 0) for i in range(1000)], num_gpus=1).warnings == ()


def test_summarize_gives_no_rate_over_no_time() -> None:
    instant = RequestRecord(
        request_id=0,
        outcome=Outcome.FINISHED,
        arrival_ns=5,
        first_token_ns=5,
        finished_ns=5,
        num_prompt_tokens=1,
        num_output_tokens=1,
    )
    summary = summarize([instant], num_gpus=1)
    assert (summary.rates.requests_per_s, summary.ttft.p50_ns) == (None, 0)
    assert summary.ttft_split_mean is None


@pytest.mark.parametrize("num_gpus", [0, -1, True, 1.5])
def test_summarize_refuses_a_wrong_number_of_gpus(num_gpus: int) -> None:
    with pytest.raises(ConfigError, match="num_gpus"):
        summarize(TWO, num_gpus=num_gpus)


def test_summary_to_dict_survives_json() -> None:
    record = summary_to_dict(summarize(TWO, num_gpus=1, slo=Slo(ttft_ns=1)))
    assert json.loads(json.dumps(record)) == record
    assert record["percentile_method"] == "nearest rank"


def test_summary_to_dict_nests_figures_under_their_names() -> None:
    record = json.loads(json.dumps(summary_to_dict(summarize(TWO, num_gpus=1))))
    assert record["ttft"]["p99_ns"] == 600 * MS
    assert record["ttft_split_p99"]["prefill_queue_ns"] == 500 * MS
    assert record["counts"] == {
        "arrived": 2,
        "finished": 2,
        "rejected": 0,
        "aborted": 0,
        "failed": 0,
        "unfinished": 0,
    }
