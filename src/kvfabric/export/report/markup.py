"""HTML and SVG as text that cannot be broken by what it shows: everything but markup is escaped."""

from html import escape

_VOID = frozenset({"meta", "input", "br"})
_SHAPES = frozenset({"path", "line", "rect", "circle", "polyline", "use"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def el(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an element; children are escaped unless they are markup.

    ``None`` children and attributes are left out, ``True`` makes an attribute without a value. In
    names of attributes a trailing underscore is dropped and others become hyphens.

    >>> el("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    opened = f"<{tag}{_attributes(attributes)}"
    if tag in _VOID:
        return Markup(f"{opened}>")
    inner = join(*children)
    if tag in _SHAPES and not inner:
        return Markup(f"{opened}/>")
    return Markup(f"{opened}>{inner}</{tag}>")


def join(*children: object) -> Markup:
    """Return children one after the other, escaped unless they are markup."""
    return Markup("".join(_inner(child) for child in children if child is not None))


def _inner(child: object) -> str:
    return child if isinstance(child, Markup) else escape(_value(child), quote=False)


def _attributes(attributes: dict[str, object]) -> str:
    parts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown = name.rstrip("_").replace("_", "-")
        parts.append(f" {shown}" if value is True else f' {shown}="{escape(_value(value))}"')
    return "".join(parts)


def _value(value: object) -> str:
    return px(value) if isinstance(value, float) else str(value)


def px(value: float) -> str:
    """Return a coordinate with at most one decimal.

    >>> px(12.04), px(-0.01), px(3.25)
    ('12', '0', '3.2')
    """
    text = f"{value:.1f}".rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text
