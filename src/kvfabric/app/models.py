"""Models by catalog name, or from a ``config.json`` on disk."""

import json
from collections.abc import Mapping
from pathlib import Path

from kvfabric.catalog.models import model_config
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.kvcache.geometry_config import geometry_from_config


def load_geometry(name: str, *, folder: Path | None = None, where: str = "model") -> KVGeometry:
    """Return the geometry of a model.

    Args:
        name: a catalog name; or a path, recognised by a slash or by ending in ``.json``.
        folder: what a relative path starts from; the working directory by default.
        where: what names the model, for messages.

    Raises:
        ConfigError: unknown name, unreadable file, or a config without the needed keys.
        UnsupportedError: an attention that is not modelled; names the key.
    """
    if is_catalog_name(name):
        return geometry_from_config(model_config(name, where=where), where=f"{where} {name}")
    path = (folder or Path()) / name
    return geometry_from_config(_read_config(path, where), where=str(path))


def is_catalog_name(name: str) -> bool:
    """Return whether a model is named, rather than the path of its config.json given."""
    return "/" not in name and not name.endswith(".json")


def _read_config(path: Path, where: str) -> Mapping[str, object]:
    hint = "Name a Hugging Face config.json, or a catalog model"
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise ConfigError(f"cannot read {path}: {reason}", where=where, hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", where=where, hint=hint) from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}:{error.lineno}: not JSON: {error.msg}", where=where, hint=hint
        ) from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deep", where=where, hint=hint) from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no JSON object", where=where, hint=hint)
    return config
