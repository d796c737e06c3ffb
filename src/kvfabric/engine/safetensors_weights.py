"""Tensors of a model directory: one ``*.safetensors`` file, or several with an index."""

import json
from collections.abc import Set as AbstractSet
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvfabric.errors import ConfigError

_INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """A tensor source over the safetensors files of a directory, read tensor by tensor.

    Raises:
        ConfigError: no such file, a broken one, or a shard of the index that is missing.
    """

    def __init__(self, directory: Path) -> None:
        """Read names only."""
        self._file_by_name: dict[str, Path] = {}
        for path in _shards(directory):
            try:
                with safe_open(path, framework="pt") as file:
                    self._file_by_name |= dict.fromkeys(file.keys(), path)
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"cannot read it: {error}", where=str(path)) from None

    @property
    def names(self) -> AbstractSet[str]:
        """Return the names of all tensors."""
        return self._file_by_name.keys()

    def get(self, name: str) -> Tensor:
        """Return one tensor, in the dtype it is stored in."""
        with safe_open(self._file_by_name[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def _shards(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if not index.exists():
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ConfigError("no *.safetensors file is there", where=str(directory))
        return paths
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError("not an index with a weight_map", where=str(index)) from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ConfigError(f"shard {name!r} is no file name", where=str(index))
        if not (directory / name).exists():
            raise ConfigError(f"shard {name} is missing", where=str(directory))
    return [directory / name for name in names]
