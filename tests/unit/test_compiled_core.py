"""Machine code of the core is used only while it is of these sources, all of it or none."""

import ast
import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from kvfabric import compiled_core
from kvfabric.compiled_core import CompiledFinder, compiled_files, digest, source_of

SUFFIX = EXTENSION_SUFFIXES[0]
MODULE = "kvfabric.serving.router"
GROUP = "kvfabric_core__mypyc"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of one source, compiled: empty files stand for the machine code."""
    source = source_of(MODULE, tmp_path)
    source.parent.mkdir()
    source.write_text("ROUTES = 1\n")
    folder = tmp_path / "_compiled"
    (folder / "serving").mkdir(parents=True)
    (folder / "serving" / f"router{SUFFIX}").touch()
    (folder / f"{GROUP}{SUFFIX}").touch()
    write_manifest(folder, {"suffix": SUFFIX, "group": GROUP, "sources": {MODULE: digest(source)}})
    return tmp_path


def write_manifest(folder: Path, manifest: object) -> None:
    (folder / compiled_core.MANIFEST).write_text(json.dumps(manifest))


def found(package: Path) -> dict[str, Path]:
    return compiled_files(package / "_compiled", package)


def test_current_code_is_found(package: Path) -> None:
    folder = package / "_compiled"
    assert found(package) == {
        MODULE: folder / "serving" / f"router{SUFFIX}",
        GROUP: folder / f"{GROUP}{SUFFIX}",
    }


def test_a_changed_source_turns_all_of_it_off(package: Path) -> None:
    source_of(MODULE, package).write_text("ROUTES = 2\n")
    assert found(package) == {}


def test_a_missing_file_turns_all_of_it_off(package: Path) -> None:
    (package / "_compiled" / f"{GROUP}{SUFFIX}").unlink()
    assert found(package) == {}


def test_another_python_turns_all_of_it_off(package: Path) -> None:
    write_manifest(
        package / "_compiled", {"suffix": ".cpython-310.so", "group": GROUP, "sources": {}}
    )
    assert found(package) == {}


@pytest.mark.parametrize("manifest", [[], {}, {"suffix": SUFFIX}, "text", None])
def test_a_broken_list_is_no_list(package: Path, manifest: object) -> None:
    write_manifest(package / "_compiled", manifest)
    assert found(package) == {}


def test_nothing_compiled_is_nothing_found(tmp_path: Path) -> None:
    assert found(tmp_path) == {}


def test_the_finder_knows_its_modules_only(package: Path) -> None:
    finder = CompiledFinder(found(package))
    spec = finder.find_spec(MODULE)
    assert spec is not None
    assert spec.origin == str(package / "_compiled" / "serving" / f"router{SUFFIX}")
    assert finder.find_spec("kvfabric.serving.scheduler") is None


RUN = """
from clusters import Cluster, ConstantNetwork, build, workload_of
from kvfabric.compiled_core import is_core_compiled
from kvfabric.protocol.workload import RequestSpec

def spec(i):
    return RequestSpec(
        request_id=i,
        arrival_ns=900 * i,
        num_prompt_tokens=3 + 7 * i % 61,
        num_output_tokens=2 + 5 * i % 37,
    )


requests = [spec(i) for i in range(300)]
cluster = Cluster(num_prefill=2, num_decode=2, async_scheduling=True)
result = build(cluster, workload_of(requests), ConstantNetwork()).run()
print(is_core_compiled(), result.num_events, result.log_digest)
"""


@pytest.mark.skipif(
    not compiled_files(), reason="no compiled core of these sources: run ./scripts/compile"
)
def test_compiled_and_interpreted_runs_are_the_same() -> None:
    def run(core: str) -> list[str]:
        made = subprocess.run(
            [sys.executable, "-c", RUN],
            env={
                **os.environ,
                compiled_core.VARIABLE: core,
                "PYTHONPATH": str(Path(__file__).parents[1]),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return made.stdout.split()

    compiled, interpreted = run("compiled"), run("interpreted")
    assert compiled[0] == "True"
    assert interpreted[0] == "False"
    assert compiled[1:] == interpreted[1:]


@pytest.mark.skipif(
    not compiled_files(), reason="no compiled core of these sources: run ./scripts/compile"
)
def test_simulate_says_the_same_with_the_compiled_core() -> None:
    # its executors extend the simulator's, which compiled classes allow to compiled ones only
    def run(core: str) -> str:
        command = "from kvfabric.app.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", command, "simulate", "--format", "json"],
            env={**os.environ, compiled_core.VARIABLE: core},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert run("compiled") == run("interpreted")


def test_no_class_outside_the_core_extends_one_of_it() -> None:
    # compiled classes can be extended by compiled ones only, which no test of the sources would see
    core = ("kvfabric.protocol", "kvfabric.kvcache", "kvfabric.serving", "kvfabric.sim")
    found = []
    for path in sorted(compiled_core.PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        package = path.relative_to(compiled_core.PACKAGE).parts[0]
        from_core = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(core)
            for alias in node.names
        }
        found += [
            f"{path.name}: {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and f"kvfabric.{package}" not in core
            for base in node.bases
            if isinstance(base, ast.Name) and base.id in from_core
        ]
    assert not found
