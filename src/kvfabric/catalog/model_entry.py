"""One model of the catalog, and how its source is named."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvfabric.protocol.provenance import Source, SourceKind


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A catalog name, the config keys it stands for, and where they were read."""

    name: str
    config: Mapping[str, object]
    source: Source


def published(repository: str) -> Source:
    """Return the source of a config read from a published repository."""
    return Source(SourceKind.PUBLISHED, f"{repository}, config.json")


def class_default(repository: str, config_class: str) -> Source:
    """Return the source of a config taken from the defaults of its class in transformers 5."""
    return Source(SourceKind.PUBLISHED, f"{repository}, defaults of {config_class}, transformers 5")
