"""From a plan to running parts: pools, limits, who stands where."""

from dataclasses import replace

import pytest
from plan_requests import plan_request, simulation_on

from kvfabric.errors import CapacityError, ConfigError
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.plan.fleet import build_fleet, worker_gpus
from kvfabric.plan.request import Placement, PlanRequest, WorkerRequest, check_plan_request


def of_workers(
    num_prefill: int = 2, num_decode: int = 2, tp: int = 4, placement: Placement = Placement.SPLIT
) -> PlanRequest:
    workers = WorkerRequest(num_prefill=num_prefill, num_decode=num_decode, tp=tp)
    request = plan_request(workers=workers)
    return replace(request, network=replace(request.network, placement=placement))


def with_workers(**changes: float | str | None) -> PlanRequest:
    request = plan_request()
    values = {name: getattr(request.workers, name) for name in WorkerRequest.__dataclass_fields__}
    return replace(request, workers=WorkerRequest(**(values | changes)))


def test_split_placement_puts_prefill_workers_first() -> None:
    assert worker_gpus(of_workers()) == (
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8, 9, 10, 11),
        (12, 13, 14, 15),
    )


def test_interleaved_placement_mixes_them_evenly() -> None:
    gpus = worker_gpus(of_workers(placement=Placement.INTERLEAVED))
    assert [ranks[0] for ranks in gpus] == [4, 12, 0, 8]  # prefill, prefill, decode, decode


@pytest.mark.parametrize(("num_prefill", "num_decode"), [(1, 7), (7, 1), (3, 5), (4, 4), (12, 4)])
@pytest.mark.parametrize("placement", Placement)
def test_every_gpu_belongs_to_one_worker(
    num_prefill: int, num_decode: int, placement: Placement
) -> None:
    request = of_workers(num_prefill, num_decode, 2, placement)
    gpus = [gpu for ranks in worker_gpus(request) for gpu in ranks]
    assert sorted(gpus) == list(range(request.workers.num_gpus))


@pytest.mark.parametrize("placement", Placement)
def test_worker_stays_inside_one_server(placement: Placement) -> None:
    for ranks in worker_gpus(of_workers(5, 3, 2, placement)):
        assert len({gpu // 8 for gpu in ranks}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prefill": 0}, "workers.num_prefill: 0 is too few"),
        ({"num_decode": 0}, "workers.num_decode: 0 is too few"),
        ({"tp": 0}, "workers.tp: 0 is too few"),
        ({"tp": 3}, "workers.tp: tp 3 does not divide"),
        ({"tp": 16}, "workers.tp: tp 16 does not divide"),
        ({"num_prefill": 3}, "workers: 20 GPUs do not fill servers"),
    ],
)
def test_fleet_that_cannot_be_laid_out_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_plan_request(with_workers(**changes))


@pytest.mark.parametrize("missing", ["fabrics", "policies"])
def test_plan_without_anything_to_compare_is_refused(missing: str) -> None:
    request = plan_request(fabrics=()) if missing == "fabrics" else plan_request(policies=())
    with pytest.raises(ConfigError, match="nothing to compare"):
        check_plan_request(request)


def test_pool_of_the_scheduler_is_that_of_the_sizing() -> None:
    fleet = build_fleet(plan_request())
    assert fleet.sizing is not None
    assert fleet.scheduler.num_blocks == fleet.sizing.pool.num_blocks
    assert fleet.scheduler.block_size == 64


def test_longest_request_is_what_the_model_has_positions_for() -> None:
    assert build_fleet(plan_request()).scheduler.max_model_len == 131_072


def test_longest_request_is_what_a_small_pool_holds() -> None:
    scheduler = build_fleet(with_workers(gpu_memory_utilization=0.1)).scheduler
    assert scheduler.max_model_len == (scheduler.num_blocks - 1) * scheduler.block_size


def test_longest_request_is_as_asked() -> None:
    assert build_fleet(with_workers(max_model_len=5_000)).scheduler.max_model_len == 5_000


def test_more_positions_than_the_model_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"workers\.max_model_len: .*131,072 tokens, not 200,000"):
        build_fleet(with_workers(max_model_len=200_000))


def test_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CapacityError):
        build_fleet(with_workers(tp=1, gpu_memory_utilization=0.15))


def test_settings_of_the_plan_reach_the_scheduler() -> None:
    scheduler = build_fleet(
        with_workers(max_num_seqs=9, max_num_batched_tokens=777, block_size=32)
    ).scheduler
    limits = (scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.block_size)
    assert limits == (9, 777, 32)


def test_sliding_window_model_is_simulated_with_as_many_requests_as_really_fit() -> None:
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 12,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32_000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 32_768,
        "torch_dtype": "bfloat16",
    }
    geometry = geometry_from_config(config, where="test")
    fleet = build_fleet(replace(plan_request(), geometry=geometry))
    assert fleet.sizing is not None
    pool, scheduler = fleet.sizing.pool, fleet.scheduler
    assert pool.num_block_tables > 1
    blocks_each = -(-4_000 // scheduler.block_size)
    assert (scheduler.num_blocks - 1) // blocks_each == int(pool.max_concurrency)
    assert any("one block table per request" in note for note in fleet.notes)


def test_aggregated_fleet_computes_on_every_worker() -> None:
    request = plan_request()
    simulation, network = simulation_on(request, "roft", "assigned", is_disaggregated=False)
    records = simulation.run(check=True).records
    assert {record.transfer_bytes for record in records} == {0}
    assert network.num_flows == 0
    assert all(record.first_token_ns == record.prefill_end_ns for record in records)
