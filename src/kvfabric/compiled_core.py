"""Takes the serving core as machine code where `./scripts/compile` made it; the sources else.

The compiled modules lie beside the sources with a list of what they were made from. They are used
all or none: one source that has changed since, or another Python, and the sources run as always.
Results are the same; `KVFABRIC_CORE=interpreted` keeps to the sources.
"""

import hashlib
import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

PACKAGE = Path(__file__).parent
FOLDER = PACKAGE / "_compiled"
MANIFEST = "manifest.json"
VARIABLE = "KVFABRIC_CORE"


class CompiledFinder(MetaPathFinder):
    """Finds modules by full name among given extension files, before any source."""

    def __init__(self, files: dict[str, Path]) -> None:
        """Take the extension file of every module."""
        self._files = files

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return where a module's machine code is, or None for all others."""
        del path, target
        file = self._files.get(fullname)
        return spec_from_file_location(fullname, file) if file else None


def digest(source: Path) -> str:
    """Return what tells one state of a source file from another."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def source_of(module: str, package: Path = PACKAGE) -> Path:
    """Return the source file of a module of this package."""
    return package.joinpath(*module.split(".")[1:]).with_suffix(".py")


def compiled_files(folder: Path = FOLDER, package: Path = PACKAGE) -> dict[str, Path]:
    """Return the extension file of every compiled module; none if they are not of these sources."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        suffix, sources, group = manifest["suffix"], manifest["sources"], manifest["group"]
        if suffix != EXTENSION_SUFFIXES[0]:
            return {}
        if any(
            digest(source_of(name, package)) != made_from for name, made_from in sources.items()
        ):
            return {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    files = {name: folder.joinpath(*name.split(".")[1:]).with_suffix(suffix) for name in sources}
    files[group] = folder / f"{group}{suffix}"
    return files if all(file.exists() for file in files.values()) else {}


def use_compiled_core() -> None:
    """Let later imports of the core find its machine code, where that is there and current."""
    if os.environ.get(VARIABLE) == "interpreted":
        return
    files = compiled_files()
    if files:
        sys.meta_path.insert(0, CompiledFinder(files))


def is_core_compiled() -> bool:
    """Return whether the core runs as machine code in this process."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)
