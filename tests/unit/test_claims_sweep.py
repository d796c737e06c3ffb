"""A sweep runs what it must once, goes on where it was interrupted, and trusts no torn file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from claims_cases import FIGURES, fabric_cell

from kvfabric.errors import ConfigError
from kvfabric.export.claims_store import FolderStore
from kvfabric.plan.claims import sweep as sweeping
from kvfabric.plan.claims.cells import FULL, QUICK, Cell, SweepPlan, cells_of
from kvfabric.plan.claims.settings import BASE, RunSettings
from kvfabric.plan.claims.sweep import NoStore, NotRun, Outcome, RunAll, Store, on_cores, sweep

CELLS: tuple[Cell, ...] = (
    fabric_cell(),
    replace(fabric_cell("ZCube routes"), after=replace(fabric_cell().after, balancing="assigned")),
)


class Runner:
    """Runs nothing; counts what it was asked for and may be interrupted."""

    def __init__(self, outcome: Outcome = FIGURES, interrupted_after: int | None = None) -> None:
        self.ran: list[RunSettings] = []
        self._outcome, self._left = outcome, interrupted_after

    def __call__(
        self, wanted: Sequence[RunSettings], store: Store, tell: Callable[[int], None]
    ) -> list[Outcome]:
        for settings in wanted:
            if self._left is not None and len(self.ran) == self._left:
                raise KeyboardInterrupt
            self.ran.append(settings)
            store.save(settings, self._outcome)
            tell(len(self.ran))
        return [self._outcome for _ in wanted]


def test_run_that_cells_share_is_run_once() -> None:
    runner = Runner()
    outcomes = sweep(CELLS, runner, NoStore())
    assert len(runner.ran) == len(set(runner.ran)) == 2 * 3 == len(outcomes)


def test_max_min_comes_first_and_tells_what_the_pfc_engine_is_spared() -> None:
    runner = Runner(replace(FIGURES, nic_utilization=0.97))
    outcomes = sweep(CELLS, runner, NoStore())
    assert {settings.engine for settings in runner.ran} == {"max-min"}
    skipped = [outcome for outcome in outcomes.values() if isinstance(outcome, NotRun)]
    assert len(skipped) == 3
    assert "97%" in skipped[0].reason


def test_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(CELLS, Runner(interrupted_after=4), FolderStore(tmp_path))
    rest = Runner()
    outcomes = sweep(CELLS, rest, FolderStore(tmp_path))
    assert len(rest.ran) == 2
    again = Runner()
    assert sweep(CELLS, again, FolderStore(tmp_path)) == outcomes
    assert again.ran == []


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "old fields"])
def test_torn_file_is_run_again(tmp_path: Path, damage: str) -> None:
    store = FolderStore(tmp_path)
    store.save(BASE, FIGURES)
    assert store.load(BASE) == FIGURES
    path = store.path_of(BASE)
    text = path.read_text("utf-8")
    match damage:
        case "cut":
            path.write_text(text[: len(text) // 2], "utf-8")
        case "changed":
            path.write_text(text.replace("1000000000", "1000000001"), "utf-8")
        case "empty":
            path.write_text("", "utf-8")
        case _:
            kept = json.loads(text)
            del kept["outcome"]
            path.write_text(json.dumps(kept), "utf-8")
    assert store.load(BASE) is None


def test_outcome_of_another_version_or_setting_is_not_taken(tmp_path: Path) -> None:
    FolderStore(tmp_path, "1.0").save(BASE, FIGURES)
    assert FolderStore(tmp_path, "1.1").load(BASE) is None
    assert FolderStore(tmp_path, "1.0").load(replace(BASE, load=0.31)) is None
    assert FolderStore(tmp_path, "1.0").load(BASE) == FIGURES


def test_why_a_run_was_refused_is_kept_as_well(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.save(BASE, NotRun("no such fabric"))
    assert store.load(BASE) == NotRun("no such fabric")


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", "utf-8")
    with pytest.raises(ConfigError, match="cannot write"):
        FolderStore(tmp_path).save(BASE, FIGURES)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_core_saves_what_it_ran(
    tmp_path: Path, num_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sweeping, "run_one", lambda settings, _: replace(FIGURES, num_flows=settings.seed)
    )
    wanted = [replace(BASE, seed=seed) for seed in range(5)]
    done: list[int] = []
    run_many: RunAll = on_cores(num_processes)
    outcomes = run_many(wanted, FolderStore(tmp_path), done.append)
    assert [outcome.num_flows for outcome in outcomes if not isinstance(outcome, NotRun)] == [
        *range(5)
    ]
    assert done[-1] == 5
    assert all(FolderStore(tmp_path).load(settings) is not None for settings in wanted)


def test_what_cannot_be_built_is_an_outcome() -> None:
    outcome = sweeping.run_one(replace(BASE, model="no-such-model"), lambda _: None)
    assert isinstance(outcome, NotRun)
    assert "no-such-model" in outcome.reason


@pytest.mark.parametrize("plan", [QUICK, FULL])
def test_cells_are_unique_and_both_sides_have_one_load(plan: SweepPlan) -> None:
    cells = cells_of(plan)
    assert len({(cell.kind, cell.before, cell.after) for cell in cells}) == len(cells)
    for cell in cells:
        if cell.kind == "fabric":
            same = ("load", "users", "hit_rate", "cold_share", "num_prefill", "model", "nic_gbps")
            assert all(getattr(cell.before, n) == getattr(cell.after, n) for n in same), cell.name


def test_quick_sweep_is_a_part_of_the_full_one() -> None:
    quick = {(cell.kind, cell.before, cell.after) for cell in cells_of(QUICK)}
    full = {(cell.kind, cell.before, cell.after) for cell in cells_of(FULL)}
    assert quick <= full
