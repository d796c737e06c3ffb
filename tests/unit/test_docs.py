"""README and docs keep what they promise: links, commands, scenarios and references are in step."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
from pydantic import BaseModel

from kvfabric.app.main import cli
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_file import built_in_text, parse_scenario, parse_section
from kvfabric.app.scenario_prices import PriceBookFile, build_price
from kvfabric.catalog.prices import PRICE_BOOK

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
]
DOC_PAGES = [page for page in PAGES if DOCS in page.parents]
EXECUTABLES = ("kvfabric", "plan")
OTHER_PROGRAMS = ("test", "pip", "python")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> str:
    return path.read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Return the text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Return the words after ``$`` in console blocks, and those after each ``&&``."""
    lines = (line for block in blocks(text, "console") for line in block.splitlines())
    parts = (part for line in lines if line.startswith("$ ") for part in line[2:].split(" && "))
    return [shlex.split(part) for part in parts]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as the usual hosts make them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def row(text: str, key: str) -> list[list[str]]:
    """Return the cells of every table row whose first cell is the key."""
    rows = re.findall(rf"^\| `{re.escape(key)}` \|(.*)\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in found.split("|")] for found in rows]


def test_readme_is_short() -> None:
    assert len(read(ROOT / "README.md").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(page))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(read(linked)), target


@pytest.mark.parametrize("page", DOC_PAGES, ids=name_of)
def test_page_names_its_reader_first(page: Path) -> None:
    paragraph = read(page).split("\n\n")[1]
    assert paragraph.startswith("For "), paragraph


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_names_no_path_of_a_machine(page: Path) -> None:
    assert not re.search(r"(?<![\w.])/(work|home|tmp|root|Users|opt|mnt)/", read(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    sources = {path.name: read(path) for path in (ROOT / "tests").rglob("test_*.py")}
    for name, function in re.findall(r"(test_\w+\.py)(?:::(test_\w+))?", read(page)):
        assert name in sources, name
        assert not function or f"def {function}(" in sources[name], function


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_are_understood(page: Path) -> None:
    for words in commands(read(page)):
        program, *arguments = words
        assert Path(program).name in (*EXECUTABLES, *OTHER_PROGRAMS), words
        if Path(program).name not in EXECUTABLES:
            continue
        if Path(program).name == "plan":
            arguments = ["plan", *arguments]
        command = cli.commands[arguments[0]]
        command.make_context(arguments[0], arguments[1:])  # raises what the command line would


def test_scripts_that_pages_name_exist() -> None:
    for page in PAGES:
        for words in commands(read(page)):
            if words[0].startswith("./"):
                assert (ROOT / words[0]).stat().st_mode & 0o111, words
            if words[0] == "python" and words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file(), words


def test_extras_that_pages_name_exist() -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    for page in PAGES:
        for listed in re.findall(r"\bkvfabric\[([\w,]+)\]", read(page)):
            assert set(listed.split(",")) <= set(project["optional-dependencies"]), (page, listed)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_scenarios_of_a_page_are_read(page: Path) -> None:
    for text in blocks(read(page), "yaml"):
        assert parse_scenario(text, name_of(page)).schema_version == 1


@pytest.mark.parametrize("text", blocks(read(DOCS / "reference" / "prices.md"), "yml"))
def test_price_books_of_the_reference_are_read(text: str) -> None:
    hint = "a test"
    book = parse_section(text, "prices.md", PriceBookFile, what="price book", hint=hint)
    assert {key: build_price(entry) for key, entry in book.prices.items()}


def test_result_in_readme_is_of_the_built_in_scenario() -> None:
    readme = read(ROOT / "README.md")
    result = readme[readme.index("<!-- result:") : readme.index("<!-- end of result -->")]
    scenario = parse_scenario(built_in_text(), "built-in")
    assert f"seed {scenario.seed}" in result
    assert scenario.fabric is not None
    for kind in scenario.fabric.kinds:
        assert re.search(rf"^ {kind} ", result, re.MULTILINE)


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and every model that its fields can hold."""
    yield model
    for field in model.model_fields.values():
        yield from models_in(field.annotation)


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from sections(annotation)
        return
    for part in get_args(annotation):
        yield from models_in(part)


SECTIONS = list(dict.fromkeys(sections(Scenario)))


def test_all_sections_of_a_scenario_are_found() -> None:
    names = {section.__name__ for section in SECTIONS}
    assert {"Workers", "FabricKind", "TraceWorkload", "GeneratedWorkload", "_Gamma"} <= names


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_scenario_reference_names_every_key(section: type[BaseModel]) -> None:
    tables = read(DOCS / "reference" / "scenario.md")
    for key, field in section.model_fields.items():
        found = row(tables, key)
        assert found, key
        default = "required" if field.is_required() else shown(field.default)
        if default is not None:
            assert default in [cells[1].strip("`") for cells in found], (key, default)


def shown(default: object) -> str | None:
    """Return a default as the reference writes it; None where that is not one word."""
    match default:
        case None:
            return "none"
        case bool():
            return str(default).lower()
        case int() if default >= 1_000_000_000:  # a duration in ns
            return f"{default // 1_000_000_000} s"
        case int() if default >= 1_000_000 and default != 10**7:
            return f"{default // 1_000_000} ms"
        case int() | float() | str():
            return str(default)
        case _:
            return None


def test_scenario_reference_names_no_key_that_does_not_exist() -> None:
    known = {key for section in SECTIONS for key in section.model_fields}
    named = re.findall(r"^\| `(\w+)` \|", read(DOCS / "reference" / "scenario.md"), re.MULTILINE)
    assert set(named) == known


OPTIONS = [
    (name, option)
    for name, command in sorted(cli.commands.items())
    for option in command.params
    if isinstance(option, click.Option)
]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=lambda part: getattr(part, "name", part))
def test_command_reference_tells_the_option(name: str, option: click.Option) -> None:
    text = read(DOCS / "reference" / "cli.md")
    section = text.split(f"## kvfabric {name}\n")[1].split("\n## ")[0]
    (cells,) = row(section, option.opts[0])
    told = (option.help or "").split("[default:")[0].strip()
    assert told in cells[2]
    if option.required:
        assert cells[1] == "required"
    elif option.show_default:
        assert cells[1] == f"`{option.default}`"


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_command_reference_names_nothing_else(name: str) -> None:
    text = read(DOCS / "reference" / "cli.md")
    section = text.split(f"## kvfabric {name}\n")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(--[\w-]+)` \|", section, re.MULTILINE))
    assert named == {option.opts[0] for command, option in OPTIONS if command == name}
    assert (cli.commands[name].help or "").split("\n")[0] in section


@pytest.mark.parametrize("key", sorted(PRICE_BOOK.prices))
def test_price_reference_states_the_price(key: str) -> None:
    price = PRICE_BOOK.price(key)
    amounts = [f"{usd:,.0f}" for usd in (price.low_usd, price.typical_usd, price.high_usd)]
    assert row(read(DOCS / "reference" / "prices.md"), key) == [[*amounts, str(price.source)]]
