"""Which GPUs workers of different sizes have, and which fleets cannot be laid out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_requests import plan_request

from kvfabric.errors import ConfigError
from kvfabric.perf.context_parallel import CpExchange
from kvfabric.plan.failures import WorkerFailure
from kvfabric.plan.fleet import worker_gpus
from kvfabric.plan.request import Placement, PlanRequest, WorkerRequest, check_fleet
from kvfabric.plan.worker_layout import fills_servers, in_turn, place_workers, worker_names


def fleet_of(placement: Placement = Placement.SPLIT, **workers: object) -> PlanRequest:
    request = plan_request(workers=WorkerRequest(**workers))  # type: ignore[arg-type]
    return replace(request, network=replace(request.network, placement=placement))


def test_workers_of_half_a_server_share_one() -> None:
    assert place_workers([4, 4, 8]) == ((0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8, 16)))


def test_smaller_workers_fill_the_room_that_larger_ones_left() -> None:
    gpus = place_workers([2, 8, 4, 2])
    assert gpus == ((0, 1), tuple(range(8, 16)), (4, 5, 6, 7), (2, 3))


def test_worker_of_three_halves_takes_a_server_and_half_of_another() -> None:
    gpus = place_workers([12, 12])
    assert gpus == (tuple(range(12)), (*range(16, 24), 12, 13, 14, 15))
    assert fills_servers(gpus)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8, 16, 24]), min_size=1, max_size=40),
)
def test_powers_of_two_that_fill_servers_in_sum_fill_them_in_any_order(sizes: list[int]) -> None:
    sizes += [1] * (-sum(sizes) % 8)
    gpus = place_workers(sizes)
    assert fills_servers(gpus)
    assert sorted(gpu for own in gpus for gpu in own) == list(range(sum(sizes)))
    assert [len(own) for own in gpus] == sizes
    assert all(len({gpu // 8 for gpu in own}) == -(-len(own) // 8) for own in gpus)


@pytest.mark.parametrize(("tp", "decode_tp"), [(4, 8), (8, 4), (2, 8), (8, 1), (4, 2)])
@pytest.mark.parametrize("placement", Placement)
def test_decode_workers_of_another_size_stay_inside_servers(
    tp: int, decode_tp: int, placement: Placement
) -> None:
    request = fleet_of(placement, num_prefill=8, num_decode=8, tp=tp, decode_tp=decode_tp)
    check_fleet(request)
    gpus = worker_gpus(request)
    assert [len(own) for own in gpus] == [tp] * 8 + [decode_tp] * 8
    assert all(len({gpu // 8 for gpu in own}) == 1 for own in gpus)
    assert sorted(gpu for own in gpus for gpu in own) == list(range(8 * (tp + decode_tp)))


def test_context_parallel_worker_spans_servers_and_its_ranks_do_not() -> None:
    request = fleet_of(num_prefill=2, num_decode=2, tp=4, prefill_cp=4)
    check_fleet(request)
    first, second, *decode = worker_gpus(request)
    assert (first, second) == (tuple(range(16)), tuple(range(16, 32)))
    assert decode == [(32, 33, 34, 35), (36, 37, 38, 39)]
    assert request.workers.num_gpus == 40


def test_order_of_equal_workers_is_that_of_even_slots() -> None:
    assert in_turn(3, 1, is_interleaved=False) == [0, 1, 2, 3]
    assert in_turn(3, 1, is_interleaved=True) == [3, 0, 1, 2]
    assert in_turn(2, 0, is_interleaved=True) == [0, 1]


def test_workers_are_called_by_what_they_do() -> None:
    assert worker_names(1, 2) == ["prefill-0", "decode-0", "decode-1"]
    assert worker_names(2, 0) == ["aggregated-0", "aggregated-1"]


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"decode_tp": 3}, r"workers\.decode_tp: decode_tp 3 does not divide the 8 GPUs"),
    ({"decode_tp": 8, "num_blocks": 99}, r"workers\.num_blocks: .* Add workers\.decode_num_blocks"),
    ({"num_decode": 0, "decode_tp": 8}, r"workers\.decode_tp: there are no decode workers"),
    ({"num_decode": 0, "decode_num_blocks": 9}, r"workers\.decode_num_blocks: there are no"),
    ({"num_decode": 0, "prefill_cp": 2}, r"workers\.prefill_cp: workers that decode cannot"),
    ({"num_decode": 3, "decode_tp": 8, "prefill_cp": 3, "num_prefill": 3}, "60 GPUs do not fill"),
    ({"prefill_cp": 3, "tp": 2, "decode_tp": 8}, "28 GPUs do not fill"),
    (
        {"prefill_cp": 3, "tp": 2, "num_prefill": 4, "decode_tp": 4},
        "when every one stays inside a server",
    ),
    (
        {"prefill_cp": 2, "num_data_ranks": 2, "num_prefill": 2},
        r"workers\.prefill_cp: context-parallel ranks with data-parallel",
    ),
    (
        {"prefill_cp": 3, "tp": 8, "cp_exchange": CpExchange.ULYSSES},
        r"workers\.cp_exchange: all-to-all over 3 ranks",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_fleet_that_cannot_be_laid_out_is_refused(changes: dict[str, object], message: str) -> None:
    workers: dict[str, object] = {"num_prefill": 2, "num_decode": 2, "tp": 4}
    with pytest.raises(ConfigError, match=message):
        check_fleet(fleet_of(Placement.SPLIT, **workers | changes))


def test_failure_of_a_worker_that_is_not_there_is_refused() -> None:
    failures = (
        WorkerFailure(worker="decode-1", at_ns=0),
        WorkerFailure(worker="decode-2", at_ns=0),
    )
    request = replace(plan_request(), failures=failures)
    with pytest.raises(
        ConfigError,
        match=r"failures\.1\.worker: no worker 'decode-2' .*prefill-0 to prefill-1, decode-0 to",
    ):
        check_fleet(request)
