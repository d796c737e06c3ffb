"""INV-9: control code reads nothing that only a simulator knows, by import, by name, by effect."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import Cluster, ConstantNetwork, build
from clusters import workload_of as workload
from hypothesis import given, settings
from hypothesis import strategies as st

import kvfabric
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import RequestSpec

ROOT = Path(kvfabric.__file__).parent
CONTROL = ("kvcache", "serving", "perf", "fabric")
ORACLE_MODULE = "kvfabric.protocol.workload"
ORACLE_NAMES = {"RequestSpec", "Workload", "after_request_id", "think_ns", "output_lengths"}


def module_name(path: Path) -> str:
    parts = ("kvfabric", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
CONTROL_MODULES = sorted(
    name for name in TREES if name.startswith(tuple(f"kvfabric.{package}" for package in CONTROL))
)


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names a module imports, anywhere in it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom():
                pytest.fail("relative imports hide what is imported")
            case _:
                pass


def reachable(start: str) -> set[str]:
    """Return the modules of the package that importing one of them loads."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in TREES and name not in seen:
            seen.add(name)
            todo += imports_of(TREES[name])
    return seen


def names_in(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield every identifier, attribute, parameter and string of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, node
            case ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name, node
            case ast.Constant(str(text)) if text.isidentifier():
                yield text, node
            case _:
                pass


def is_own_count(node: ast.AST) -> bool:
    """Return whether ``num_output_tokens`` here is the count of what a timeline has seen come out.

    That is the field itself, its copy into the record, and its assignment from a worker's report.
    """
    match node:
        case ast.Attribute(value=ast.Name("self")):
            return True
        case ast.Attribute(value=ast.Name("timeline"), ctx=ast.Store()):
            return True
        case ast.keyword() | ast.Name(ctx=ast.Store()):
            return True
        case _:
            return False


def slot_names(tree: ast.Module) -> set[ast.AST]:
    """Return the strings that declare the fields of a class."""
    return {
        text
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets)
        for text in ast.walk(node.value)
    }


def starts_at_zero(tree: ast.Module) -> bool:
    """Return whether a class sets its own count to nothing but 0."""
    return all(
        isinstance(node.value, ast.Constant) and node.value.value == 0
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and target.attr == "num_output_tokens"
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


def test_the_packages_of_the_control_are_found() -> None:
    assert {name.split(".")[1] for name in CONTROL_MODULES} == set(CONTROL)


@pytest.mark.parametrize("name", CONTROL_MODULES)
def test_control_module_reaches_no_record_of_the_workload(name: str) -> None:
    loaded = reachable(name)
    assert ORACLE_MODULE not in loaded
    assert not any(module.startswith(("kvfabric.workload", "kvfabric.sim")) for module in loaded)


@pytest.mark.parametrize("name", CONTROL_MODULES)
def test_control_module_names_nothing_the_workload_alone_knows(name: str) -> None:
    used = {word for word, _ in names_in(TREES[name])}
    assert used.isdisjoint(ORACLE_NAMES)


@pytest.mark.parametrize("name", CONTROL_MODULES)
def test_output_length_is_only_ever_what_has_come_out(name: str) -> None:
    declared = slot_names(TREES[name])
    uses = [node for word, node in names_in(TREES[name]) if word == "num_output_tokens"]
    assert all(node in declared or is_own_count(node) for node in uses)
    assert starts_at_zero(TREES[name])
    assert not uses or name in {"kvfabric.serving.timeline", "kvfabric.serving.coordinator"}


def test_only_the_executor_of_the_simulator_holds_true_output_lengths() -> None:
    holders = {
        name
        for name, tree in TREES.items()
        if any(word == "output_lengths" for word, _ in names_in(tree))
    }
    assert holders == {"kvfabric.sim.executor"}


def test_driver_never_looks_at_the_output_length_it_could_pass_on() -> None:
    # control would decide the same by knowing the length as a limit, so no run can show this leak
    driver = [name for name in TREES if name.startswith("kvfabric.sim.")]
    assert {"kvfabric.sim.simulation", "kvfabric.sim.action_runner"} <= set(driver)
    names = {word for name in driver for word, _ in names_in(TREES[name])}
    assert "num_output_tokens" not in names


def history(records: tuple[RequestRecord, ...], until_ns: int) -> list[tuple[int, str, int]]:
    """Return everything that happened to requests before an instant."""
    fields = [name for name in RequestRecord.__dataclass_fields__ if name.endswith("_ns")]
    known = [
        (getattr(record, name), name, record.request_id)
        for record in records
        for name in fields
        if getattr(record, name) is not None
    ]
    return sorted(entry for entry in known if entry[0] < until_ns)


lengths = st.lists(
    st.tuples(st.sampled_from([0, 200, 3000]), st.integers(1, 60), st.integers(1, 40)),
    min_size=2,
    max_size=10,
)


@settings(max_examples=60)
@given(lengths, st.integers(0, 9), st.integers(1, 12), st.integers(0, 2))
def test_longer_output_changes_nothing_before_the_shorter_one_would_have_ended(
    drawn: list[tuple[int, int, int]], which: int, extra: int, num_decode: int
) -> None:
    """The effect of a true output length begins where the output ends: nobody knew it before."""
    now_ns, specs = 0, list[RequestSpec]()
    for request_id, (gap_ns, prompt, output) in enumerate(drawn):
        now_ns += gap_ns
        specs.append(
            RequestSpec(
                request_id=request_id,
                arrival_ns=now_ns,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
            )
        )
    which %= len(specs)
    cluster = Cluster(num_prefill=2, num_decode=num_decode, num_blocks=29, max_model_len=112)
    short = build(cluster, workload(specs), ConstantNetwork()).run()
    longer = replace(specs[which], num_output_tokens=specs[which].num_output_tokens + extra)
    specs[which] = longer
    long = build(cluster, workload(specs), ConstantNetwork()).run()
    end_ns = short.records[which].finished_ns
    assert end_ns is not None
    assert history(short.records, end_ns) == history(long.records, end_ns)
