"""Where the larger reference data lies; tests that need it are skipped, visibly, without it."""

import os
from pathlib import Path

import pytest

_ROOT = Path(os.environ.get("KVFABRIC_REFERENCE", Path(__file__).parents[2] / "shared" / "data"))


def reference_path(name: str) -> Path:
    """Return the path of one reference file or folder, or skip the test that asks for it."""
    path = _ROOT / name
    if not path.exists():
        pytest.skip(f"reference data {name} is not here (set KVFABRIC_REFERENCE)")
    return path
