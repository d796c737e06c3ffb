"""Runs go to a Ray cluster and back; a stand-in for Ray answers at once, last asked first."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from claims_cases import FIGURES

from kvfabric.app import claims_ray
from kvfabric.errors import ConfigError
from kvfabric.export.claims_store import FolderStore
from kvfabric.plan.claims.settings import BASE
from kvfabric.plan.claims.sweep import NotRun


class ClusterError(Exception):
    """What Ray raises when a run fails on a node."""


class FakeRay(ModuleType):
    """A cluster of three CPUs that remembers how many runs were under way at once."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.under_way: dict[int, Any] = {}
        self.most_under_way = 0
        self.is_up = False
        self.error: Exception | None = None
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = ClusterError  # type: ignore[attr-defined]
        self.fails_with: str | None = None

    def init(self, address: str | None, *, log_to_driver: bool) -> None:
        del address, log_to_driver
        if self.error is not None:
            raise self.error
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def remote(self, **options: object) -> Callable[[Callable[..., Any]], Any]:
        assert options == {"num_cpus": 1}

        def wrap(function: Callable[..., Any]) -> Any:
            wrapped = ModuleType("remote function")

            def submit(settings: object) -> int:
                reference = len(self.under_way) + 1000 * (self.most_under_way + 1)
                while reference in self.under_way:
                    reference += 1
                self.under_way[reference] = function(settings)
                self.most_under_way = max(self.most_under_way, len(self.under_way))
                return reference

            wrapped.remote = submit  # type: ignore[attr-defined]
            return wrapped

        return wrap

    def wait(self, references: list[int], num_returns: int) -> tuple[list[int], list[int]]:
        assert num_returns == 1
        return references[-1:], references[:-1]

    def get(self, reference: int) -> Any:
        if self.fails_with is not None:
            raise ClusterError(self.fails_with)
        return self.under_way.pop(reference)


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(
        claims_ray,
        "run_one",
        lambda settings, _: (
            replace(FIGURES, num_flows=settings.seed) if settings.seed != 4 else NotRun("refused")
        ),
    )
    yield fake
    assert not fake.is_up


def test_outcomes_are_saved_as_they_come_and_handed_back_in_order(
    fake_ray: FakeRay, tmp_path: Path
) -> None:
    wanted = [replace(BASE, seed=seed) for seed in range(7)]
    done: list[int] = []
    with claims_ray.ray_runner("", 2) as (run_many, at_once):
        outcomes = run_many(wanted, FolderStore(tmp_path), done.append)
    assert at_once == fake_ray.most_under_way == 2
    assert done == [*range(1, 8)]
    assert [getattr(outcome, "num_flows", None) for outcome in outcomes] == [0, 1, 2, 3, None, 5, 6]
    assert [FolderStore(tmp_path).load(settings) for settings in wanted] == outcomes


def test_every_cpu_of_the_cluster_is_used(fake_ray: FakeRay) -> None:
    with claims_ray.ray_runner("head:6379", None) as (_, at_once):
        assert fake_ray.is_up
    assert at_once == 3


def test_cluster_that_does_not_answer_is_one_message(fake_ray: FakeRay) -> None:
    fake_ray.error = ConnectionError("nobody listens\nand much more")
    with pytest.raises(ConfigError, match=r"--ray: no Ray cluster at head:1: nobody listens\."):
        claims_ray.ray_runner("head:1", None).__enter__()


def test_run_that_fails_on_a_node_is_one_message(fake_ray: FakeRay, tmp_path: Path) -> None:
    fake_ray.fails_with = (
        "task failed\n  File x\\nModuleNotFoundError: No module named 'kvfabric'\n"
    )
    said = "a run failed on the cluster: ModuleNotFoundError: No module named 'kvfabric'"
    with (
        pytest.raises(ConfigError, match=said),
        claims_ray.ray_runner("", 2) as (run_many, _),
    ):
        run_many([BASE], FolderStore(tmp_path), lambda _: None)


def test_missing_ray_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_ray, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"kvfabric\[ray\]"):
        claims_ray.ray_runner("", None).__enter__()
