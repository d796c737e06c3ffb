"""A GGUF file: its metadata as plain values, its tensors as arrays.

The header is read here, in a tenth of a second for 100,000 tokens and merges (the ``gguf`` package
takes seconds); values are dequantized by that package.
Source: the format's specification, ``docs/gguf.md`` of ggml, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from kvfabric.errors import ConfigError

_STRING, _ARRAY = 8, 9
_FORMAT_BY_TYPE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
_FORMAT_BY_TYPE |= {10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS = 4


class _TensorPlace(NamedTuple):
    shape: tuple[int, ...]  # outermost axis first
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


class _Cursor:
    """Reads values one after the other; a file that ends early raises ``struct.error``."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        size = struct.calcsize(layout)
        if size > len(self._data) - self.at:
            raise struct.error(f"the file ends within {count} values")
        values = struct.unpack_from(layout, self._data, self.at)
        self.at += size
        return values

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def text(self) -> str:
        size = self.number("Q")
        if size > len(self._data) - self.at:
            raise struct.error(f"the file ends within a text of {size} bytes")
        raw = self._data[self.at : self.at + size]
        self.at += size
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_FORMAT_BY_TYPE[kind])
        item, count = self.number("I"), self.number("Q")
        if item in _FORMAT_BY_TYPE:
            return list(self.numbers(_FORMAT_BY_TYPE[item], count))
        return [self.value(item) for _ in range(count)]


class GgufFile:
    """An open GGUF file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            ConfigError: not a GGUF file, or a broken one.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._values, self._places = _read_header(self._data)
        except (OSError, ValueError, KeyError, struct.error, RecursionError) as error:
            raise ConfigError(f"not a GGUF file: {error}", where=str(path)) from None

    @property
    def tensor_names(self) -> list[str]:
        """Return the names of all tensors, as GGUF calls them."""
        return list(self._places)

    def value(self, key: str, default: Any = None) -> Any:
        """Return a metadata value: a number, a text or a list of them."""
        return self._values.get(key, default)

    def required(self, key: str) -> Any:
        """Return a metadata value that must be there."""
        if key not in self._values:
            raise ConfigError(f"metadata key {key} is missing", where=str(self.path))
        return self._values[key]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, outermost axis first."""
        if name not in self._places:
            raise ConfigError(f"tensor {name} is missing", where=str(self.path))
        return self._places[name].shape

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in fp32, dequantized; a copy."""
        shape, kind, offset, num_bytes = self._places[name]
        raw = np.frombuffer(self._data, np.uint8, num_bytes, offset)
        if kind == GGMLQuantizationType.F32:
            return raw.view("<f4").astype(np.float32).reshape(shape)
        values: NDArray[np.float32] = dequantize(raw, kind)
        return values.reshape(shape)


def _read_header(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, _TensorPlace]]:
    cursor = _Cursor(data)
    if (magic := cursor.numbers("c", 4)) != (b"G", b"G", b"U", b"F"):
        raise ValueError(f"it starts with {b''.join(magic)!r}")
    if (version := cursor.number("I")) not in {2, 3}:
        raise ValueError(f"version {version}; 2 and 3 are read")
    num_tensors, num_values = cursor.numbers("Q", 2)
    values = {}
    for _ in range(num_values):
        key = cursor.text()
        values[key] = cursor.value(cursor.number("I"))
    places = dict(_tensor_place(cursor) for _ in range(num_tensors))
    alignment = values.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment
    for name, place in places.items():
        if start + place.offset + place.num_bytes > len(data):
            raise ValueError(f"it ends within tensor {name}")
        places[name] = place._replace(offset=start + place.offset)
    return values, places


def _tensor_place(cursor: _Cursor) -> tuple[str, _TensorPlace]:
    name, dimensions = cursor.text(), cursor.number("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(reversed(cursor.numbers("Q", dimensions)))
    kind = GGMLQuantizationType(cursor.number("I"))
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    num_bytes = math.prod(shape) // block_values * block_bytes
    return name, _TensorPlace(shape, kind, cursor.number("Q"), num_bytes)
