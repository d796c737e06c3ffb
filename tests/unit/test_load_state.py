"""Whether a fleet kept up, judged from its requests."""

import pytest

from kvfabric.plan.load_state import GROWTH_LIMIT, LoadState, Pressure, judge_load
from kvfabric.protocol.record import Outcome, RequestRecord


def record(
    request_id: int, *, queue_ns: int = 0, blocks_ns: int = 0, work_ns: int = 100
) -> RequestRecord:
    """Return a finished request that waited, computed, waited for blocks and got its token."""
    arrival_ns = 1000 * request_id
    prefill_end_ns = arrival_ns + queue_ns + work_ns
    reserved_ns = prefill_end_ns + blocks_ns
    return RequestRecord(
        request_id=request_id,
        outcome=Outcome.FINISHED,
        arrival_ns=arrival_ns,
        routed_ns=arrival_ns,
        prefill_start_ns=arrival_ns + queue_ns,
        prefill_end_ns=prefill_end_ns,
        reserved_ns=reserved_ns,
        transferred_ns=reserved_ns,
        first_token_ns=reserved_ns,
        finished_ns=reserved_ns + 500,
        num_prompt_tokens=10,
        num_output_tokens=5,
    )


def given_up(request_id: int) -> RequestRecord:
    """Return a request whose hand-off passed its deadline."""
    return RequestRecord(
        request_id=request_id,
        outcome=Outcome.ABORTED,
        arrival_ns=1000 * request_id,
        routed_ns=1000 * request_id,
        prefill_start_ns=1000 * request_id,
        prefill_end_ns=1000 * request_id + 100,
        finished_ns=1000 * request_id + 60_000_000_000,
        num_prompt_tokens=10,
        num_output_tokens=0,
    )


def judge(*queues_ns: int) -> LoadState:
    return judge_load([record(i, queue_ns=queue) for i, queue in enumerate(queues_ns)])


def test_no_waiting_is_stable() -> None:
    state = judge(0, 0, 0, 0)
    assert (state.pressure, state.bottleneck) == (Pressure.STABLE, "prefill")
    assert (state.waiting_share, state.growth) == (0.0, 1.0)


def test_half_of_the_time_waiting_is_still_stable() -> None:
    state = judge(100, 100, 100, 100)
    assert (state.pressure, state.waiting_share) == (Pressure.STABLE, 0.5)


def test_steady_long_waiting_is_saturated() -> None:
    state = judge(300, 300, 300, 300)
    assert (state.pressure, state.waiting_share) == (Pressure.SATURATED, 0.75)


def test_waiting_that_grows_is_overloaded() -> None:
    state = judge(100, 300, 600, 900)
    assert state.pressure is Pressure.OVERLOADED
    assert state.growth == 5.0  # 1,000 over 200 ns


def test_growth_at_the_limit_is_not_yet_overload() -> None:
    state = judge(100, 300, 300, 500)
    assert state.growth == GROWTH_LIMIT
    assert state.pressure is Pressure.SATURATED


def test_growth_without_waiting_is_stable() -> None:
    records = [record(i, work_ns=100 * (i + 1)) for i in range(8)]
    assert judge_load(records).pressure is Pressure.STABLE


def test_growth_compares_quarters_by_arrival_not_by_order_given() -> None:
    records = [record(i, queue_ns=100 * i) for i in range(8)]
    assert judge_load(records[::-1]) == judge_load(records)


def test_bottleneck_is_what_is_waited_for_most() -> None:
    blocks = [record(i, queue_ns=50, blocks_ns=400) for i in range(4)]
    assert judge_load(blocks).bottleneck == "decode blocks"
    assert judge(400, 400, 400, 400).bottleneck == "prefill"


def test_fewer_than_four_requests_have_no_growth() -> None:
    assert judge(100, 300, 900).growth == 1.0


@pytest.mark.parametrize("num_records", [0, 1])
def test_nothing_to_judge_is_stable(num_records: int) -> None:
    assert judge_load([record(i) for i in range(num_records)]).pressure is Pressure.STABLE


def test_rejected_requests_do_not_count() -> None:
    rejected = RequestRecord(
        request_id=9,
        outcome=Outcome.REJECTED,
        arrival_ns=0,
        num_prompt_tokens=10,
        num_output_tokens=0,
    )
    records = [record(i, queue_ns=300) for i in range(4)]
    assert judge_load([*records, rejected]) == judge_load(records)


def test_fleet_that_gives_up_its_hand_offs_has_not_kept_up() -> None:
    # every request waited its whole deadline for decode blocks: none finished, none was served
    assert judge_load([given_up(i) for i in range(100)]).pressure is not Pressure.STABLE
