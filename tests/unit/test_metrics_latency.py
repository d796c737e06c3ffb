"""Latencies of one request, by hand."""

from dataclasses import replace

import pytest

from kvfabric.errors import ConfigError
from kvfabric.metrics.latency import (
    Slo,
    TtftSplit,
    e2e_ns,
    mean_split,
    meets_slo,
    split_of_parts,
    split_ttft,
    tpot_ns,
    ttft_ns,
)
from kvfabric.protocol.record import Outcome, RequestRecord

DISAGGREGATED = RequestRecord(
    request_id=3,
    outcome=Outcome.FINISHED,
    arrival_ns=100,
    routed_ns=110,
    prefill_start_ns=130,
    prefill_end_ns=230,
    reserved_ns=260,
    transferred_ns=300,
    first_token_ns=320,
    finished_ns=1320,
    num_prompt_tokens=4096,
    num_output_tokens=11,
)


def test_ttft_runs_from_arrival_to_first_token() -> None:
    assert ttft_ns(DISAGGREGATED) == 220


def test_ttft_is_unknown_without_a_first_token() -> None:
    assert ttft_ns(replace(DISAGGREGATED, first_token_ns=None)) is None


def test_e2e_runs_from_arrival_to_last_token() -> None:
    assert e2e_ns(DISAGGREGATED) == 1220


def test_e2e_is_unknown_for_an_aborted_request() -> None:
    assert e2e_ns(replace(DISAGGREGATED, outcome=Outcome.ABORTED)) is None


def test_tpot_divides_by_the_tokens_after_the_first() -> None:
    assert tpot_ns(DISAGGREGATED) == 100


def test_tpot_rounds_up() -> None:
    assert tpot_ns(replace(DISAGGREGATED, finished_ns=1321)) == 101


def test_tpot_is_undefined_for_one_token() -> None:
    assert tpot_ns(replace(DISAGGREGATED, num_output_tokens=1, finished_ns=320)) is None


def test_split_ttft_names_every_stage() -> None:
    assert split_ttft(DISAGGREGATED) == TtftSplit(
        router_ns=10,
        prefill_queue_ns=20,
        prefill_compute_ns=100,
        decode_blocks_wait_ns=30,
        wire_ns=40,
        first_decode_step_ns=20,
    )


def test_split_ttft_sums_to_ttft() -> None:
    split = split_ttft(DISAGGREGATED)
    assert split is not None
    assert split.total_ns == ttft_ns(DISAGGREGATED)


def test_split_ttft_of_an_aggregated_request_has_no_hand_off() -> None:
    aggregated = replace(
        DISAGGREGATED, reserved_ns=230, transferred_ns=230, first_token_ns=230, finished_ns=1000
    )
    split = split_ttft(aggregated)
    assert split is not None
    assert split.as_parts_ns()[3:] == (0, 0, 0)


def test_split_ttft_where_decode_is_asked_first() -> None:
    record = replace(DISAGGREGATED, reserved_ns=115)
    split = split_ttft(record, decode_first=True)
    assert split == TtftSplit(
        router_ns=10,
        decode_blocks_wait_ns=5,
        prefill_queue_ns=15,
        prefill_compute_ns=100,
        wire_ns=70,
        first_decode_step_ns=20,
    )
    assert split.total_ns == ttft_ns(record)


def test_split_ttft_where_a_prefill_begins_with_its_decode_blocks() -> None:
    split = split_ttft(replace(DISAGGREGATED, reserved_ns=130), decode_first=True)
    assert split is not None
    assert (split.decode_blocks_wait_ns, split.prefill_queue_ns) == (20, 0)


def test_split_ttft_of_a_streamed_prompt_counts_what_is_left_after_its_prefill() -> None:
    record = replace(DISAGGREGATED, reserved_ns=150)
    split = split_ttft(record)
    assert split is not None
    assert (split.decode_blocks_wait_ns, split.wire_ns) == (0, 70)
    assert split.total_ns == ttft_ns(record)


def test_split_ttft_of_a_prompt_computed_again_after_its_lease_had_been_reserved_first() -> None:
    again = replace(DISAGGREGATED, reserved_ns=230, transferred_ns=230, first_token_ns=230)
    assert split_ttft(again, decode_first=True) == split_ttft(again)


def test_split_ttft_is_unknown_when_a_stage_is() -> None:
    assert split_ttft(replace(DISAGGREGATED, reserved_ns=None)) is None


def test_split_ttft_does_not_hide_instants_out_of_order() -> None:
    with pytest.raises(AssertionError, match="request 3: instants out of order"):
        split_ttft(replace(DISAGGREGATED, routed_ns=90))


def test_mean_split_still_sums_to_the_mean() -> None:
    # 1/3 and 2/3 of a ns in each stage: rounding stage by stage would lose the sum
    splits = [split_of_parts([0] * 6), split_of_parts([0] * 6), split_of_parts([1] * 6)]
    mean = mean_split(splits)
    assert mean is not None
    assert mean.total_ns == 2
    assert set(mean.as_parts_ns()) <= {0, 1}


def test_mean_split_of_nothing_is_none() -> None:
    assert mean_split([]) is None


@pytest.mark.parametrize(
    ("slo", "is_met"),
    [
        (Slo(), True),
        (Slo(ttft_ns=220, tpot_ns=100), True),
        (Slo(ttft_ns=219), False),
        (Slo(tpot_ns=99), False),
        (Slo(ttft_ns=220, tpot_ns=99), False),
    ],
)
def test_meets_slo_needs_both_targets(slo: Slo, is_met: bool) -> None:
    assert meets_slo(DISAGGREGATED, slo) is is_met


def test_meets_slo_does_not_ask_one_token_for_a_tpot() -> None:
    record = replace(DISAGGREGATED, num_output_tokens=1, finished_ns=320)
    assert meets_slo(record, Slo(ttft_ns=220, tpot_ns=1))


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.REJECTED, Outcome.UNFINISHED])
def test_meets_slo_is_false_for_whatever_did_not_finish(outcome: Outcome) -> None:
    assert not meets_slo(replace(DISAGGREGATED, outcome=outcome), Slo(ttft_ns=10**9))


@pytest.mark.parametrize("target", [0, -1, True, 1.5])
def test_slo_refuses_what_is_no_duration(target: int) -> None:
    with pytest.raises(ConfigError, match=r"slo\.ttft_ns: read"):
        Slo(ttft_ns=target)
    with pytest.raises(ConfigError, match=r"slo\.tpot_ns: read"):
        Slo(tpot_ns=target)
