"""What a user reads about kinds of fabric names all of them, with all their sizes."""

import re
from pathlib import Path

import pytest

from kvfabric.app.fabric_cli import topology
from kvfabric.fabric.build import BUILDERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "topologies.md"


def rows() -> dict[str, list[str]]:
    """Return the cells of the table of kinds, by kind."""
    lines = re.findall(r"^\| `([\w-]+)` \|(.+)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {kind: [cell.strip() for cell in rest.split("|")] for kind, rest in lines}


def test_reference_and_help_name_the_kinds_there_are() -> None:
    assert list(rows()) == list(BUILDERS)
    (kind,) = (option for option in topology.params if option.name == "kind")
    listed = getattr(kind, "help", "").rstrip(".").replace(" or ", ", ").split(", ")
    assert listed == list(BUILDERS)


@pytest.mark.parametrize("kind", BUILDERS)
def test_reference_names_the_ports_and_sizes_of_a_kind(kind: str) -> None:
    ports, _tiers, shape, *_ = rows()[kind]
    assert tuple(re.findall(r"\*(\w+)\*", shape)) == BUILDERS[kind].shape_keys
    of_shape = re.fullmatch(r"\*(\w+)\*", ports)
    if of_shape:
        assert BUILDERS[kind].ports_per_nic({of_shape[1]: 5}) == 5
    else:
        assert BUILDERS[kind].ports_per_nic({}) == int(ports)
