"""Laws of the metrics: conservation of requests, exact sums, order does not matter."""

import random
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kvfabric.metrics.latency import Slo, mean_split, split_ttft, tpot_ns, ttft_ns
from kvfabric.metrics.percentiles import nearest_rank, rounded_div
from kvfabric.metrics.summary import summarize
from kvfabric.protocol.record import Outcome, RequestRecord

DURATION_NS = st.integers(0, 10**13)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """Return a request whose instants stand in order; unfinished ones stop anywhere."""
    gaps = draw(st.lists(DURATION_NS, min_size=8, max_size=8))
    outcome = draw(st.sampled_from(Outcome))
    reached = 8 if outcome is Outcome.FINISHED else draw(st.integers(1, 7))
    instants: list[int | None] = list(list(accumulate(gaps))[:reached])
    instants += [None] * (8 - reached)
    return RequestRecord(
        request_id=0,
        outcome=outcome,
        arrival_ns=instants[0] or 0,
        routed_ns=instants[1],
        prefill_start_ns=instants[2],
        prefill_end_ns=instants[3],
        reserved_ns=instants[4],
        transferred_ns=instants[5],
        first_token_ns=instants[6],
        finished_ns=instants[7],
        num_prompt_tokens=draw(st.integers(1, 10**6)),
        num_output_tokens=draw(st.integers(1, 10**4)),
    )


RUNS = st.lists(records(), max_size=30)


@given(RUNS)
def test_every_arrival_has_one_outcome(run: list[RequestRecord]) -> None:
    counts = summarize(run, num_gpus=1).counts
    ended = counts.finished + counts.rejected + counts.aborted + counts.failed + counts.unfinished
    assert counts.arrived == ended == len(run)


@given(RUNS, st.randoms(use_true_random=False))
def test_order_of_records_does_not_matter(
    run: list[RequestRecord], shuffler: random.Random
) -> None:
    # Rounds of several sessions end out of order; figures must not be matched by index:
    # https://github.com/sgl-project/sglang/pull/12603
    shuffled = list(run)
    shuffler.shuffle(shuffled)
    slo = Slo(ttft_ns=10**12)
    assert summarize(shuffled, num_gpus=2, slo=slo) == summarize(run, num_gpus=2, slo=slo)


@given(records())
def test_stages_sum_to_ttft(record: RequestRecord) -> None:
    split, total_ns = split_ttft(record), ttft_ns(record)
    assert (split is None) == (total_ns is None)
    if split is not None:
        assert split.total_ns == total_ns


@given(st.lists(records().filter(lambda r: r.outcome is Outcome.FINISHED), min_size=1, max_size=20))
def test_mean_stages_sum_to_the_mean_ttft(run: list[RequestRecord]) -> None:
    mean = mean_split([split for record in run if (split := split_ttft(record)) is not None])
    total_ns = sum(ttft_ns(record) or 0 for record in run)
    assert mean is not None
    assert mean.total_ns == rounded_div(total_ns, len(run))
    assert min(mean.as_parts_ns()) >= 0


@given(records().filter(lambda r: r.outcome is Outcome.FINISHED and r.num_output_tokens > 1))
def test_tpot_bounds_the_decode_time(record: RequestRecord) -> None:
    per_token_ns, gaps = tpot_ns(record), record.num_output_tokens - 1
    decode_ns = (record.finished_ns or 0) - (record.first_token_ns or 0)
    assert per_token_ns is not None
    assert decode_ns <= per_token_ns * gaps < decode_ns + gaps


@given(st.lists(st.integers(-(10**18), 10**18), min_size=1), st.integers(1, 100))
def test_nearest_rank_leaves_the_asked_share_at_or_below(values: list[int], percent: int) -> None:
    ordered = sorted(values)
    chosen = nearest_rank(ordered, percent)
    assert chosen in ordered
    assert 100 * sum(value <= chosen for value in ordered) >= percent * len(ordered)
    assert 100 * sum(value < chosen for value in ordered) < percent * len(ordered)


@given(RUNS, st.integers(1, 10**13), st.integers(1, 10**13))
def test_goodput_is_never_more_than_throughput(
    run: list[RequestRecord], target_ns: int, per_token_ns: int
) -> None:
    rates = summarize(run, num_gpus=1, slo=Slo(ttft_ns=target_ns, tpot_ns=per_token_ns)).rates
    if rates.requests_per_s is not None and rates.goodput_per_s is not None:
        assert 0 <= rates.goodput_per_s <= rates.requests_per_s
