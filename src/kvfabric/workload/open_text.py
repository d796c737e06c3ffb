"""Lines of a text file, plain or packed, with every way a file can be unreadable told apart."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kvfabric.errors import ConfigError, UnsupportedError

_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_UNREAD_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_PACKED_SUFFIXES = (".gz", ".xz")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, text without line end)``, unpacking .gz and .xz by content.

    A byte-order mark is dropped. Bytes that are not UTF-8 come out as U+FFFD, so that the row
    they stand in can be refused by its line.

    Raises:
        ConfigError: the file is missing, a folder, unreadable or its packing is damaged.
        UnsupportedError: it is packed in a way that is not read here.
    """
    try:
        with (
            closing(_open_binary(path)) as packed,
            io.TextIOWrapper(packed, encoding="utf-8-sig", errors="replace") as text,
        ):
            for number, line in enumerate(text, start=1):
                yield number, line.rstrip("\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ConfigError(
            f"the packed file is damaged or cut off ({error})",
            where=str(path),
            hint="Copy it again, or unpack it by hand",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the file ({error.strerror or error})",
            where=str(path),
            hint="Write the path of a readable file",
        ) from error


def unpacked_suffix(path: Path) -> str:
    """Return the suffix in lower case below that of the packing, such as ``.jsonl``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _open_binary(path: Path) -> gzip.GzipFile | lzma.LZMAFile | io.BufferedReader:
    with path.open("rb") as raw:
        magic = raw.read(6)
    for start, packing in _UNREAD_MAGIC.items():
        if magic.startswith(start):
            raise UnsupportedError(
                f"the file is packed as {packing}",
                where=str(path),
                hint="Unpack it, or pack it as .gz or .xz",
            )
    if magic.startswith(_GZIP_MAGIC):
        return gzip.open(path, "rb")
    if magic.startswith(_XZ_MAGIC):
        return lzma.open(path, "rb")
    if path.suffix.lower() in _PACKED_SUFFIXES and magic:
        raise ConfigError(
            f"the name ends in {path.suffix} but the content is not packed that way",
            where=str(path),
            hint="Copy the file again, or rename it",
        )
    return path.open("rb")
