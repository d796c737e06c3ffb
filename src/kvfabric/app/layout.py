"""Text for people, laid out alike everywhere: fixed width, no color codes."""

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 118
STAGES = ("router", "prefill queue", "prefill", "decode blocks", "wire", "first step")


def ms(duration_ns: int | None) -> str:
    """Return a duration in ms, or a dash."""
    return "-" if duration_ns is None else f"{duration_ns / 1e6:,.1f}"


def number(value: float | None) -> str:
    """Return a number with three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns under a title; the first one, and names of links, to the left."""
    grid = Table(header_style="", box=None)
    for position, column in enumerate(columns):
        is_text = position == 0 or column == "busiest link"
        grid.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console = Console(width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(grid)
    lines = (line.rstrip() for line in capture.get().splitlines())
    return "\n".join((fold(title), *lines)) + "\n"


def fold(text: str) -> str:
    """Break long lines of prose at spaces; tables are left alone."""
    if "\n" in text or len(text) <= WIDTH:
        return text
    indent = " " * (len(text) - len(text.lstrip(" -")))
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
