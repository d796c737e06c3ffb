"""Where results and progress go: a folder of files, and a bar where somebody watches."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvfabric.errors import ConfigError
from kvfabric.plan.compare import ReportProgress

if TYPE_CHECKING:
    from rich.progress import TaskID


def check_out(out: Path | None) -> None:
    """Refuse, before the long run, a folder that cannot be made or written."""
    if out is None:
        return
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest} is a file", where="--out", hint="Name a folder")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(f"cannot write in {nearest}", where="--out", hint="Name another folder")


def write_text(path: Path, text: str, *, where: str) -> None:
    """Write one file; ``where`` is the option that named it."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", where=where, hint="Name another file"
        ) from None


def write_files(out: Path, files: Mapping[str, str | bytes]) -> None:
    """Write texts and bytes by name into a folder, which is made if need be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            data = content.encode("utf-8") if isinstance(content, str) else content
            (out / name).write_bytes(data)
    except OSError as error:
        reason = error.strerror or "it cannot be written"
        raise ConfigError(
            f"cannot write {out}: {reason}", where="--out", hint="Name another folder"
        ) from None


@contextmanager
def progress_bar() -> Iterator[ReportProgress | None]:
    """Yield what draws progress on stderr; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    # without a refresh thread: designs run in forked processes
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        tasks: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, refresh=True)

        yield _seldom(report)


def _seldom(report: ReportProgress) -> ReportProgress:
    """Pass on one report in a hundred, and the last: drawing costs more than simulating."""

    def maybe_report(name: str, done: int, total: int) -> None:
        if done == total or done % max(1, total // 100) == 0:
            report(name, done, total)

    return maybe_report
