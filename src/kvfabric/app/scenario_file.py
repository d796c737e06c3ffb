"""From the text of a scenario to a ``Scenario``, with the line of every mistake."""

import difflib
from collections.abc import Hashable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvfabric.app.scenario import Scenario
from kvfabric.errors import ConfigError

BUILT_IN = "built-in scenario"

_SectionT = TypeVar("_SectionT", bound=BaseModel)

_HINTS = {
    "missing": "Add the key",
    "int_type": "Write a whole number",
    "float_type": "Write a number",
    "string_type": "Write text, in quotes if it looks like a number",
    "bool_type": "Write true or false",
    "model_type": "Write a mapping of keys",
    "model_attributes_type": "Write a mapping of keys",
    "list_type": "Write a list, such as [a, b]",
    "too_short": "Write at least {min_length}",
    "greater_than": "Write a number above {gt:g}",
    "greater_than_equal": "Write {ge} or more",
    "less_than_equal": "Write {le:.0f} or less",
    "literal_error": "Write {expected}",
    "invalid_key": "Write the key as text",
}
_TAG_ERRORS = ("union_tag_not_found", "union_tag_invalid")


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: YAML would keep the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    "a list or mapping stands where a key is needed",
                    key_node.start_mark,
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def built_in_text() -> str:
    """Return the scenario that ``kvfabric plan`` runs without a file."""
    return files("kvfabric.app").joinpath("built_in.yaml").read_text("utf-8")


def load_scenario(path: Path | None) -> Scenario:
    """Read a scenario file, or the built-in one.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or has a mistake; names file and line.
    """
    if path is None:
        return parse_scenario(built_in_text(), BUILT_IN)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the scenario: {reason}", where=str(path), hint="Name a YAML file"
        ) from None
    return parse_scenario(text, str(path))


def place_of(key: str, path: Path | None) -> str:
    """Return file, line and key, for a mistake found after the file was read."""
    text = built_in_text() if path is None else path.read_text("utf-8")
    name = BUILT_IN if path is None else str(path)
    root = _Loader(text).get_single_node()
    assert root is not None, "the file was read before"
    keys = [int(part) if part.isdecimal() else part for part in key.split(".")]
    return f"{name}:{_line_of(keys, root)}: {key}"


def parse_scenario(text: str, name: str) -> Scenario:
    """Return the scenario of a YAML text; ``name`` stands for the file in messages."""
    hint = "Start with 'schema_version: 1'; 'kvfabric plan --show' prints an example"
    return parse_section(text, name, Scenario, what="scenario", hint=hint)


def parse_section(
    text: str, name: str, section: type[_SectionT], *, what: str, hint: str
) -> _SectionT:
    """Return what a YAML text says.

    Args:
        text: of the file.
        name: stands for the file in messages.
        section: its keys.
        what: the file is, for messages.
        hint: what to write where the file holds no keys.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        values = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise _yaml_error(error, name, what) from None
    except RecursionError:
        raise ConfigError(
            f"cannot read the {what}: it is nested too deep", where=name, hint="Check the YAML"
        ) from None
    if root is None or not isinstance(values, dict):
        raise ConfigError(f"the {what} holds no mapping of keys", where=name, hint=hint)
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise _first_mistake(error, root, name, section) from None


def _yaml_error(error: yaml.YAMLError, name: str, what: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = name if mark is None else f"{name}:{mark.line + 1}"
    problem = getattr(error, "problem", None) or "it is not YAML"
    return ConfigError(f"cannot read the {what}: {problem}", where=where, hint="Check the YAML")


def _first_mistake(
    error: ValidationError, root: yaml.Node, name: str, section: type[BaseModel]
) -> ConfigError:
    # an unknown key first: it is often the reason why another one is missing
    mistakes = sorted(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    detail = mistakes[0]
    keys = _keys_in_file(detail["loc"], root, is_missing=detail["type"] == "missing")
    below = detail.get("ctx", {}).get("key", "")
    keys.extend(_keys_below(below, keys, root))
    line = _line_of(keys, root)
    where = f"{name}:{line}: {'.'.join(str(key) for key in keys)}"
    hint = _hint(detail, section)
    if len(mistakes) > 1:
        hint = f"{hint} ({len(mistakes) - 1} more after this one)"
    return ConfigError(_what(detail), where=where, hint=hint)


def _what(detail: ErrorDetails) -> str:
    read = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown key {detail['loc'][-1]!r}"
        case "missing":
            return "the key is missing"
        case "quantity":
            return detail["msg"]
        case "union_tag_not_found":
            return "the key 'kind' is missing"
        case "union_tag_invalid":
            return f"unknown kind {detail['ctx']['tag']!r}"
        case "model_type" | "model_attributes_type":
            return f"read {read!r}"
        case _:
            shown = "a mapping" if isinstance(read, Mapping) else repr(read)
            return f"read {shown}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _hint(detail: ErrorDetails, top: type[BaseModel]) -> str:
    if detail["type"] == "quantity":
        return str(detail["ctx"]["hint"])
    if detail["type"] in _TAG_ERRORS:
        tags = (_tag(section) for section in _sections_at(detail["loc"], top))
        return f"Write one of {', '.join(tag for tag in tags if tag)}"
    if detail["type"] == "extra_forbidden":
        known = _known_keys(detail["loc"][:-1], top)
        close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        if close:
            return f"Did you mean {close[0]!r}?"
        return f"Known keys: {', '.join(known)}"
    return _HINTS.get(detail["type"], "").format_map(detail.get("ctx", {}))


def _known_keys(location: Sequence[int | str], top: type[BaseModel]) -> list[str]:
    """Return the keys of the section at a location."""
    names = (name for section in _sections_at(location, top) for name in section.model_fields)
    return list(dict.fromkeys(names))


def _sections_at(location: Sequence[int | str], top: type[BaseModel]) -> list[type[BaseModel]]:
    """Return what may stand at a location: a section, or the alternatives that a tag chooses."""
    sections: list[type[BaseModel]] = [top]
    for key in location:
        fields = (section.model_fields.get(str(key)) for section in sections)
        inner = [found for field in fields if field for found in _sections_in(field.annotation)]
        sections = inner or [s for s in sections if _tag(s) == key] or sections
    return sections


def _sections_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = getattr(annotation, "__args__", ())
    return [section for part in inner for section in _sections_in(part)]


def _tag(section: type[BaseModel]) -> str | None:
    kind = section.model_fields.get("kind")
    values = getattr(kind.annotation, "__args__", ()) if kind is not None else ()
    return str(values[0]) if values else None


def _keys_in_file(
    location: Sequence[int | str], root: yaml.Node, *, is_missing: bool
) -> list[int | str]:
    """Return the part of an error's location that is keys of the file (not names of types).

    ``is_missing``: the last key is the one that the file lacks.
    """
    keys: list[int | str] = []
    node: yaml.Node | None = root
    for position, key in enumerate(location):
        child = _child(node, key)
        if child is None and not (is_missing and position == len(location) - 1):
            continue
        keys.append(key)
        node = child
    return keys


def _keys_below(below: str, keys: Sequence[int | str], root: yaml.Node) -> list[str]:
    """Return the keys of a path such as ``kinds.radix``; a key of the file may hold dots itself."""
    node: yaml.Node | None = root
    for key in keys:
        node = _child(node, key)
    if _child(node, below) is not None:
        return [below]
    return below.split(".") if below else []


def _line_of(keys: Sequence[int | str], root: yaml.Node) -> int:
    """Return the line of the last of the keys that is in the file."""
    node, line = root, root.start_mark.line
    for key in keys:
        found = _entry(node, key)
        if found is None:
            break
        start, node = found
        line = start.start_mark.line
    return line + 1


def _child(node: yaml.Node | None, key: int | str) -> yaml.Node | None:
    found = _entry(node, key)
    return None if found is None else found[1]


def _entry(node: yaml.Node | None, key: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return where an entry begins (its key, or itself in a list) and what it holds."""
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            if key_node.value == str(key):
                return key_node, value_node
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key], node.value[key]
    return None
