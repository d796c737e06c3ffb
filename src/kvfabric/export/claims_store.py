"""Outcomes of finished runs in a folder, one file each, so that a sweep can be interrupted."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kvfabric
from kvfabric.errors import ConfigError
from kvfabric.plan.claims.settings import RunSettings
from kvfabric.plan.claims.sweep import Outcome, outcome_from_dict, outcome_to_dict

FOLDER = "runs"


def package_digest() -> str:
    """Return the version of the package with a digest of its Python files."""
    root = Path(kvfabric.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return f"{kvfabric.__version__} {digest.hexdigest()[:16]}"


class FolderStore:
    """Keeps the outcome of each run in ``FOLDER/runs/DIGEST.json``.

    The name is a digest of the settings and of the package's sources, so results of other sources
    are not taken. A file is written whole under another name first; one that is torn all
    the same, or was changed by hand, does not match its checksum and is run again.
    """

    def __init__(self, folder: Path, version: str | None = None) -> None:
        """Keep outcomes under a folder, which is made at the first one."""
        self._folder = folder / FOLDER
        self._version = package_digest() if version is None else version

    def path_of(self, settings: RunSettings) -> Path:
        """Return the file of a run."""
        return self._folder / f"{settings.digest(self._version)}.json"

    def load(self, settings: RunSettings) -> Outcome | None:
        """Return what an earlier sweep found, or None."""
        try:
            kept = json.loads(self.path_of(settings).read_text("utf-8"))
            if kept["checksum"] != _checksum(kept["outcome"]):
                return None
            return outcome_from_dict(kept["outcome"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, settings: RunSettings, outcome: Outcome) -> None:
        """Write the outcome of a run.

        Raises:
            ConfigError: the folder cannot be written.
        """
        path, values = self.path_of(settings), outcome_to_dict(outcome)
        kept = {"checksum": _checksum(values), "settings": asdict(settings), "outcome": values}
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
            part.replace(path)
        except OSError as error:
            reason = error.strerror or "it cannot be written"
            raise ConfigError(
                f"cannot write {path}: {reason}", where="--out", hint="Name another folder"
            ) from None


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
