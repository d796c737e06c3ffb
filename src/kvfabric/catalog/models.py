"""Models by name: the config keys that KV geometry and parameter counts need, and nothing else.

Every entry states facts read from the model's published ``config.json`` or, where it says so, from
the default values of the model's config class.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from kvfabric.catalog.model_entries import DENSE_MODELS
from kvfabric.catalog.model_entries_hybrid import HYBRID_MODELS
from kvfabric.catalog.model_entries_moe import EXPERT_MODELS
from kvfabric.catalog.model_entry import ModelEntry
from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source

_ENTRIES = {entry.name: entry for entry in (*DENSE_MODELS, *EXPERT_MODELS, *HYBRID_MODELS)}


def model_names() -> tuple[str, ...]:
    """Return all catalog names, in order."""
    return tuple(sorted(_ENTRIES))


def model_config(name: str, *, where: str = "") -> Mapping[str, object]:
    """Return the config mapping of this catalog name.

    Raises:
        ConfigError: there is none; names the closest.
    """
    return MappingProxyType(dict(_entry(name, where).config))


def model_source(name: str, *, where: str = "") -> Source:
    """Return where the config of this catalog name was read.

    Raises:
        ConfigError: there is none; names the closest.
    """
    return _entry(name, where).source


def _entry(name: str, where: str) -> ModelEntry:
    if name not in _ENTRIES:
        close = get_close_matches(name.lower(), _ENTRIES, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(close)}? " if close else ""
        raise ConfigError(
            f"unknown model {name!r}",
            where=where,
            hint=f"{hint}Write a catalog name or the path of a config.json",
        )
    return _ENTRIES[name]
