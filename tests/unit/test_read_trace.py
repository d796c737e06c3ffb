"""Files on disk: packing, choice of the format, and every way a file can be unreadable."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.workload.azure import read_azure
from kvfabric.workload.mooncake import read_mooncake
from kvfabric.workload.open_text import read_lines
from kvfabric.workload.read import read_trace

MOONCAKE = (
    b'{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}\n'
    b'{"timestamp": 5, "input_length": 500, "output_length": 8, "hash_ids": [0]}\n'
)
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n"
    b"2023-11-16 18:15:50.9951690,396,109"
)
PACKINGS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, lzma.compress]


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", PACKINGS)
@pytest.mark.parametrize("name", ["t.jsonl", "trace", "t.csv"])
def test_read_trace_knows_mooncake_by_content(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    workload = read_trace(write(tmp_path, name, pack(MOONCAKE)))
    assert [r.block_hashes for r in workload.requests] == [(0, 7), (0,)]


@pytest.mark.parametrize("pack", PACKINGS)
@pytest.mark.parametrize("name", ["t.csv", "trace", "t.jsonl"])
def test_read_trace_knows_azure_by_content(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    workload = read_trace(write(tmp_path, name, pack(AZURE)))
    assert [r.num_output_tokens for r in workload.requests] == [44, 109]


def test_read_trace_names_the_workload_after_the_file(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, "t.jsonl", MOONCAKE)).name == "t.jsonl"


def test_read_trace_skips_leading_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, "trace", b"\xef\xbb\xbf\n\n" + AZURE)
    assert len(read_trace(path).requests) == 2


def test_read_trace_falls_back_to_the_suffix(tmp_path: Path) -> None:
    path = write(tmp_path, "T.JSONL.GZ", gzip.compress(b"oops\n" + MOONCAKE))
    assert [bad.line for bad in read_trace(path, on_bad_rows="skip").bad_rows] == [1]


def test_read_trace_obeys_a_stated_format(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", b"oops\n" + MOONCAKE)
    workload = read_trace(path, trace_format="mooncake", on_bad_rows="skip")
    assert len(workload.requests) == 2


def test_read_trace_refuses_a_format_it_does_not_know(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", AZURE)
    with pytest.raises(ConfigError, match="Write 'mooncake', 'azure'"):
        read_trace(path, trace_format="sharegpt")  # type: ignore[arg-type]  # the point of the test


def test_read_trace_refuses_to_guess(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot tell the format from 'hello'"):
        read_trace(write(tmp_path, "t.txt", b"hello\n"))


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.jsonl.gz", "t.xz"])
@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_read_trace_refuses_an_empty_file(tmp_path: Path, name: str, content: bytes) -> None:
    packed = gzip.compress(content) if name.endswith(".gz") else content
    packed = lzma.compress(content) if name.endswith(".xz") else packed
    with pytest.raises(ConfigError, match="the file is empty"):
        read_trace(write(tmp_path, name, packed))


def test_read_trace_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot read the file \(No such file"):
        read_trace(tmp_path / "nowhere.jsonl")


def test_read_trace_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file"):
        read_trace(tmp_path)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_read_trace_refuses_a_packed_file_cut_off(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(ConfigError, match="damaged or cut off"):
        read_trace(write(tmp_path, "t.jsonl.gz", pack(MOONCAKE * 1000)[:-30]))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_read_trace_refuses_a_packed_file_with_flipped_bytes(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    packed = bytearray(pack(MOONCAKE * 1000))
    packed[len(packed) // 2] ^= 0xFF
    packed[len(packed) // 2 + 1] ^= 0xFF
    with pytest.raises(ConfigError):
        read_trace(write(tmp_path, "t.jsonl.gz", bytes(packed)))


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl.xz"])
def test_read_trace_refuses_a_name_that_promises_packing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not packed that way"):
        read_trace(write(tmp_path, name, MOONCAKE))


@pytest.mark.parametrize(
    ("magic", "packing"),
    [(b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh91AY", "bzip2"), (b"PK\x03\x04", "zip")],
)
def test_read_trace_names_a_packing_it_does_not_read(
    tmp_path: Path, magic: bytes, packing: str
) -> None:
    with pytest.raises(UnsupportedError, match=f"packed as {packing}"):
        read_trace(write(tmp_path, "t.jsonl.zst", magic + b"\x00" * 20))


def test_read_trace_turns_bytes_that_are_no_text_into_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path, "t.jsonl", MOONCAKE + b"\xff\xfe\x00\n")
    assert [bad.line for bad in read_trace(path, on_bad_rows="skip").bad_rows] == [3]


def test_read_trace_hands_on_the_options(tmp_path: Path) -> None:
    row = b'{"timestamp": 0, "input_length": 33, "output_length": 9, "hash_ids": [1, 2, 3]}\n'
    path = write(tmp_path, "t.jsonl", row)
    assert read_trace(path, hash_block_tokens=16).hash_block_tokens == 16
    with pytest.raises(ConfigError, match="together exceed 40"):
        read_trace(path, hash_block_tokens=16, max_model_len=40)


def test_readers_of_one_format_read_files_too(tmp_path: Path) -> None:
    assert len(read_mooncake(write(tmp_path, "a", MOONCAKE)).requests) == 2
    assert len(read_azure(write(tmp_path, "b", AZURE)).requests) == 2


def test_read_lines_numbers_from_one_and_drops_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path, "a", b"x\r\ny\n\nz")
    assert list(read_lines(path)) == [(1, "x"), (2, "y"), (3, ""), (4, "z")]
