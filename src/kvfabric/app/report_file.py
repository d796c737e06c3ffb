"""The HTML report of a plan as a file."""

import os
from pathlib import Path

from kvfabric.errors import ConfigError


def check_html(path: Path | None) -> None:
    """Refuse, before the long run, a file that cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", where="--html", hint="Name a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}", where="--html", hint="Make it, or name another file"
        )
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise ConfigError(f"cannot write {path}", where="--html", hint="Name another file")


def write_html(path: Path, text: str) -> None:
    """Write the page."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        reason = error.strerror or "it cannot be written"
        raise ConfigError(
            f"cannot write {path}: {reason}", where="--html", hint="Name another file"
        ) from None
