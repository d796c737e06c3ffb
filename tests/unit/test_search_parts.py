"""The parts of a search: spaces, deadlines, reuse, the ideal network, words and pictures."""

from dataclasses import replace

import pytest
from search_requests import MS, small_search

from kvfabric.app.scatter import Mark, scatter
from kvfabric.errors import ConfigError
from kvfabric.metrics.latency import Slo
from kvfabric.perf.handoff import payload_rate_bps
from kvfabric.plan.bom import Cost
from kvfabric.plan.request import FabricChoice
from kvfabric.plan.search.costs import DesignCost, gpu_cost
from kvfabric.plan.search.deadlines import Job, due_times, most_at_once
from kvfabric.plan.search.evaluate import Outcome
from kvfabric.plan.search.findings import price_order
from kvfabric.plan.search.ideal_network import IdealNetwork
from kvfabric.plan.search.pruned import PruneLog, Reason
from kvfabric.plan.search.result import Evaluated
from kvfabric.plan.search.reuse import reusable_tokens
from kvfabric.plan.search.search import search
from kvfabric.plan.search.shape import Shape, splits
from kvfabric.plan.search.space import (
    MAX_SPLITS,
    Mode,
    SearchSpace,
    default_gpu_counts,
    fabric_options,
    shapes,
)
from kvfabric.protocol.transfer import RankTransfer, TransferPlan
from kvfabric.protocol.workload import RequestSpec, Workload

GBIT = 10**9


def space(**changes: object) -> SearchSpace:
    given = SearchSpace(
        num_gpus=(8, 16),
        tps=(4, 8),
        fabrics=(FabricChoice(kind="clos"), FabricChoice(kind="zcube", radix=64)),
        nic_rates_bps=(200 * GBIT, 400 * GBIT),
        switch_capacities_bps=(None, 10**13),
        load_balancing=("ecmp", "assigned"),
    )
    return replace(given, **changes)  # type: ignore[arg-type]


def test_space_holds_every_split_and_the_fleet_that_does_both() -> None:
    names = [shape.name for shape, is_tried in shapes(space()) if is_tried]
    assert names == [
        "2 x TP4", "1P1D TP4", "1 x TP8",
        "4 x TP4", "1P3D TP4", "2P2D TP4", "3P1D TP4", "2 x TP8", "1P1D TP8",
    ]  # fmt: skip


def test_ratios_and_modes_narrow_the_space() -> None:
    asked = space(ratios=((1, 1),), modes=(Mode.DISAGGREGATED,))
    found = list(shapes(asked))
    assert [shape.name for shape, is_tried in found if is_tried] == [
        "1P1D TP4", "2P2D TP4", "1P1D TP8",
    ]  # fmt: skip
    assert [shape.name for shape, is_tried in found if not is_tried] == ["1P3D TP4", "3P1D TP4"]


def test_large_fleets_get_evenly_spread_splits_with_both_ends() -> None:
    asked = space(num_gpus=(1024,), tps=(1,), modes=(Mode.DISAGGREGATED,))
    tried = [shape.num_prefill for shape, is_tried in shapes(asked) if is_tried]
    assert (len(tried), tried[0], tried[-1]) == (MAX_SPLITS, 1, 1023)


def test_workers_of_unlike_size_share_the_gpus() -> None:
    assert [shape.name for shape in splits(16, 1, 4)] == [
        "4P3D TP1+TP4", "8P2D TP1+TP4", "12P1D TP1+TP4",
    ]  # fmt: skip
    assert all(shape.num_gpus == 16 for shape in splits(16, 2, 4, prefill_cp=2))


def test_capacity_of_switches_varies_only_where_no_radix_is_given() -> None:
    options = fabric_options(space())
    assert len(options) == 2 * 2 * 2 + 2 * 1 * 2
    assert [option.idx for option in options] == list(range(12))
    assert options[0].name == "clos 200G ecmp"
    assert options[2].name == "clos 200G 10T ecmp"
    assert {option.switch_capacity_bps for option in options[8:]} == {None}


def test_default_sizes_are_whole_servers_up_to_twice_the_fleet() -> None:
    assert default_gpu_counts(12) == (8, 16, 24)
    large = default_gpu_counts(1024)
    assert (len(large), large[0], large[-1]) == (32, 64, 2048)


def load(*specs: RequestSpec, hash_block_tokens: int = 64) -> Workload:
    return Workload(
        name="load", requests=specs, hash_block_tokens=hash_block_tokens, num_rows=len(specs)
    )


def test_turn_is_due_when_all_before_it_met_their_targets() -> None:
    turns = load(
        RequestSpec(request_id=0, arrival_ns=7, num_prompt_tokens=9, num_output_tokens=3),
        RequestSpec(
            request_id=1,
            arrival_ns=0,
            num_prompt_tokens=9,
            num_output_tokens=1,
            after_request_id=0,
            think_ns=50,
        ),
    )
    first, second = due_times(turns, Slo(ttft_ns=100, tpot_ns=10))
    assert (first.earliest_ns, first.first_token_ns, first.finish_ns) == (7, 107, 127)
    assert (second.earliest_ns, second.first_token_ns, second.finish_ns) == (57, 277, 277)
    assert first.session == second.session
    first, second = due_times(turns, Slo(ttft_ns=100))
    assert (first.first_token_ns, first.finish_ns) == (107, None)
    assert second.first_token_ns is None


def test_busiest_stretch_counts_without_the_costliest_sessions() -> None:
    jobs = [Job(i, i * 10, i * 10 + 10, 5.0) for i in range(8)]
    assert most_at_once(jobs, 0) == 0.5
    burst = [*jobs, Job(8, 80, 90, 40.0)]
    assert most_at_once(burst, 0) == 4.0
    assert most_at_once(burst, 1) < 4.0
    assert most_at_once(jobs, 8) == 0.0


def test_only_what_another_request_has_can_be_found() -> None:
    shared = load(
        *(
            RequestSpec(
                request_id=i,
                arrival_ns=0,
                num_prompt_tokens=tokens,
                num_output_tokens=1,
                block_hashes=blocks,
                namespace=namespace,
            )
            for i, (tokens, blocks, namespace) in enumerate(
                [(200, (1, 2, 3), 0), (128, (1, 2), 0), (200, (1, 9, 4), 0), (200, (1, 2, 3), 5)]
            )
        )
    )
    assert reusable_tokens(shared, is_caching=True) == [128, 127, 64, 0]
    assert reusable_tokens(shared, is_caching=False) == [0, 0, 0, 0]


def test_ideal_network_gives_every_transfer_its_nics() -> None:
    network = IdealNetwork(400 * GBIT)
    one_ns = -(-8 * 10**9 * 10**6 // payload_rate_bps(400 * GBIT))
    across = (RankTransfer(0, 8, 10**6), RankTransfer(1, 9, 10**6), RankTransfer(2, 3, 10**9))
    network.start(TransferPlan(1, across), 5)
    network.start(TransferPlan(2, (RankTransfer(0, 8, 10**6), RankTransfer(0, 9, 10**6))), 5)
    network.start(TransferPlan(3, (RankTransfer(0, 8, 10**6),)), 5)
    network.cancel(3, 6)
    assert network.next_completion_ns() == 5 + one_ns
    assert network.advance(5 + one_ns) == [1]
    assert network.advance(5 + 2 * one_ns) == [2]
    assert network.next_completion_ns() is None
    network.start(TransferPlan(4, (RankTransfer(2, 3, 10**9),)), 10**9)
    assert network.advance(10**9) == [4]


def test_reasons_are_counted_in_the_order_of_the_stages() -> None:
    log = PruneLog()
    log.add(Reason.MISSES, 2, "late")
    log.add(Reason.DOES_NOT_FIT, 3, "large")
    log.add(Reason.MISSES, 1, "later")
    log.add(Reason.NO_GAIN, 0, "none")
    rows = [(row.reason, row.count, row.example) for row in log.rows()]
    assert rows == [(Reason.DOES_NOT_FIT, 3, "large"), (Reason.MISSES, 3, "late")]
    assert {reason.stage for reason in Reason} == {"construction", "bound", "cost", "simulation"}


def design(low: float, typical: float, high: float) -> Evaluated:
    shape = Shape(num_prefill=1, num_decode=0, tp=8, decode_tp=8)
    cost = DesignCost(gpus=Cost(low_usd=low, typical_usd=typical, high_usd=high), fabric=None)
    outcome = Outcome(num_ended=0, num_missed=0)
    return Evaluated(shape=shape, option=None, cost=cost, outcome=outcome, meets=True)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (design(2, 3, 4), "ranges overlap; with all prices low and with all prices high the order"),
        (design(5, 6, 7), "ranges do not overlap; with all prices low"),
        (design(0.5, 3, 4), "overlap, and with all prices low the order turns"),
        (design(0.5, 3, 2), "overlap, and with all prices low or high the order turns"),
        (design(1, 2, 3), "Both cost the same at any price"),
    ],
)
def test_order_of_two_designs_over_the_price_ranges(other: Evaluated, told: str) -> None:
    assert told in price_order(design(1, 2, 3), other)


def test_gpu_without_a_price_is_told() -> None:
    request = small_search()
    assert request.base.gpu is not None
    gpu = replace(request.base.gpu, name="b9000")
    with pytest.raises(ConfigError, match="no price for 'b9000'"):
        gpu_cost(gpu, 8, request.base.price_book)


def test_search_without_targets_is_refused() -> None:
    request = small_search()
    with pytest.raises(ConfigError, match="no targets"):
        search(replace(request, base=replace(request.base, slo=Slo())))


@pytest.mark.parametrize(("share", "allowed"), [(1.0, 0), (0.99, 0), (0.9, 4), (0.975, 1)])
def test_requests_that_may_miss(share: float, allowed: int) -> None:
    request = replace(small_search(slo=Slo(ttft_ns=MS)), attainment=share)
    assert len(request.base.workload.requests) == 40
    assert request.num_allowed == allowed
    assert (40 - allowed) / 40 >= share


def test_picture_places_marks_and_the_target() -> None:
    text = scatter([Mark(1, 100, "A"), Mark(2, 300, "D"), Mark(2, 300, "*")], level=200)
    lines = text.splitlines()
    assert lines[0].endswith("*")
    assert lines[0].startswith("  300 |")
    assert lines[-3].startswith("  100 |A")
    assert sum("----" in line for line in lines) == 2
    assert "D" not in text
    assert scatter([Mark(1, 1, "x")]).count("x") == 1
