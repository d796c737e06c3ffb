"""Building blocks of the page: sections, tables, figures, legends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvfabric.export.report.markup import Markup, el, join


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; ``unit`` stands in its head, ``group`` in a head over several."""

    name: str
    unit: str = ""
    group: str = ""
    is_text: bool = False


def section(anchor: str, title: str, *children: object) -> Markup:
    """Return a section of the page under its heading."""
    heading = el("h2", title, id=f"{anchor}-h")
    measure = "load" if anchor == "fabrics" else None
    return el(
        "section",
        heading,
        *children,
        id=anchor,
        aria_labelledby=f"{anchor}-h",
        data_measure=measure,
    )


def data_table(
    caption: str, columns: Sequence[Column], rows: Iterable[Sequence[object]], foot: int = 0
) -> Markup:
    """Return a table that can be sorted; the first column names the row.

    Args:
        caption: what the table says.
        columns: heads.
        rows: cells, text or markup.
        foot: so many rows at the end are totals, which stay there.
    """
    body = [_row(columns, row) for row in rows]
    cut = len(body) - foot
    table = el(
        "table",
        el("caption", el("span", caption)),
        el("thead", _group_row(columns), el("tr", *(_head(column) for column in columns))),
        el("tbody", *body[:cut]),
        el("tfoot", *body[cut:]) if foot else None,
        class_="data",
    )
    return el("div", table, class_="scroll")


def _group_row(columns: Sequence[Column]) -> Markup | None:
    if not any(column.group for column in columns):
        return None
    cells: list[Markup] = []
    position = 0
    while position < len(columns):
        group, span = columns[position].group, 1
        while group and position + span < len(columns) and columns[position + span].group == group:
            span += 1
        width = span if span > 1 else None
        cells.append(
            el("th", group, scope="colgroup", colspan=width, class_="group") if group else el("td")
        )
        position += span
    return el("tr", *cells, class_="groups")


def _head(column: Column) -> Markup:
    unit = el("span", column.unit, class_="unit") if column.unit else None
    name = el("span", column.name, class_="name")
    return el("th", name, unit, scope="col", class_="text" if column.is_text else None)


def _row(columns: Sequence[Column], row: Sequence[object]) -> Markup:
    cells = [el("th", row[0], scope="row")]
    for column, cell in zip(columns[1:], row[1:], strict=True):
        cells.append(el("td", cell, class_="text" if column.is_text else None))
    return el("tr", *cells)


def chart(
    anchor: str, title: str, desc: str, size: tuple[float, float], *children: object
) -> Markup:
    """Return a drawing with its name and description for those who do not see it."""
    width, height = size
    return el(
        "svg",
        el("title", title, id=f"{anchor}-t"),
        el("desc", desc, id=f"{anchor}-d"),
        *children,
        class_="chart",
        role="img",
        aria_labelledby=f"{anchor}-t {anchor}-d",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
    )


def figure(caption: object, *children: object, class_: str | None = None) -> Markup:
    """Return what is drawn with the sentence that says what to see in it."""
    return el("figure", *children, el("figcaption", caption), class_=class_)


def scroll(child: object) -> Markup:
    """Return what may be wider than the page, in a box that scrolls by itself."""
    return el("div", child, class_="scroll")


def more(summary: str, *children: object) -> Markup:
    """Return what is folded away on the screen and open in print."""
    return el("details", el("summary", summary), *children)


def legend(entries: Iterable[tuple[Markup, object]]) -> Markup:
    """Return samples with their meaning."""
    items = (el("li", sample, el("span", text)) for sample, text in entries)
    return el("ul", *items, class_="legend")


def sample(*shapes: object, width: float = 28) -> Markup:
    """Return the piece of drawing that a legend explains."""
    return el(
        "svg",
        *shapes,
        class_="sample",
        aria_hidden="true",
        viewBox=f"0 0 {width:g} 14",
        width=f"{width:g}",
        height="14",
    )


def bullets(items: Iterable[object]) -> Markup:
    """Return a list."""
    return el("ul", *(el("li", item) for item in items))


def pairs(items: Iterable[tuple[object, object]], class_: str | None = None) -> Markup:
    """Return terms with what is said about them."""
    rows = (el("div", el("dt", term), el("dd", text)) for term, text in items)
    return el("dl", join(*rows), class_=class_)
