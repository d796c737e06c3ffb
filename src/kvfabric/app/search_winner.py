"""The winning design as a scenario of its own."""

from collections.abc import Sequence
from pathlib import Path

from kvfabric.app.scenario import Fabric, Scenario, Workers
from kvfabric.app.shown import shown_scenario, with_whole_paths
from kvfabric.plan.request import FabricChoice
from kvfabric.plan.search.result import Evaluated, SearchResult
from kvfabric.plan.search.shape import FabricOption, Shape


def winner_yaml(scenario: Scenario, result: SearchResult, folder: Path) -> str:
    """Return the scenario of the winner, for ``kvfabric plan`` where that can run it.

    ``plan`` compares fabrics and needs decode workers. Where every worker does both, the scenario
    splits the same fleet in two halves, and the design is the row ``aggregated``; workers that no
    fabric can join, or a single one, are for ``kvfabric simulate``.
    """
    winner = result.winner
    assert winner is not None, "checked before"
    option = result.winner_fabric
    is_split = option is not None and winner.shape.num_prefill + winner.shape.num_decode > 1
    base = result.request.base
    changes: dict[str, object] = {
        "search": None,
        "users": base.num_users,
        "context_tokens": base.num_context_tokens,
        "workers": _workers(scenario.workers, winner.shape, is_split=is_split),
    }
    if option is not None:
        changes["fabric"] = _fabric(scenario, option, result.request.space.fabrics)
    if winner.shape.is_aggregated:
        changes["compare_aggregated"] = True
    whole = with_whole_paths(scenario.model_copy(update=changes), folder)
    head = "".join(f"# {line}\n" for line in _head(winner, is_split=is_split))
    return head + shown_scenario(whole, with_whole_paths(scenario, folder), "scenario", "search")


def _workers(workers: Workers, shape: Shape, *, is_split: bool) -> Workers:
    num_prefill, num_decode = shape.num_prefill, shape.num_decode
    if shape.is_aggregated and is_split:
        num_prefill, num_decode = num_prefill - num_prefill // 2, num_prefill // 2
    return workers.model_copy(
        update={
            "prefill": num_prefill,
            "decode": num_decode,
            "tp": shape.tp,
            "decode_tp": None if shape.decode_tp == shape.tp else shape.decode_tp,
            "prefill_cp": shape.prefill_cp,
            "async_scheduling": bool(workers.async_scheduling),
        }
    )


def _fabric(scenario: Scenario, option: FabricOption, choices: Sequence[FabricChoice]) -> Fabric:
    assert scenario.fabric is not None, "checked before"
    assert scenario.search is not None, "filled before"
    assert scenario.search.kinds is not None, "filled before"
    kind = scenario.search.kinds[choices.index(option.choice)]
    return scenario.fabric.model_copy(
        update={
            "nic_rate": option.nic_rate_bps,
            "switch": option.switch_capacity_bps,
            "kinds": [kind],
            "load_balancing": [option.load_balancing],
        }
    )


def _head(winner: Evaluated, *, is_split: bool) -> list[str]:
    shape = winner.shape
    if winner.option is not None:
        return [f"kvfabric plan winner.yaml: {shape.name}, {winner.network_name}"]
    if not shape.is_aggregated:
        return [
            f"kvfabric plan winner.yaml: {shape.name} in one server; the fabric is the cheapest,",
            "as plan wants one, and carries nothing",
        ]
    if not is_split:
        return [f"kvfabric simulate winner.yaml: {shape.name}, every worker does both"]
    return [
        f"kvfabric plan winner.yaml: {shape.name}, every worker does both: the row 'aggregated';",
        "the other rows are the same GPUs split in two halves",
    ]
