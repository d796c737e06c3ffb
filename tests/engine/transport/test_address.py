import stat
from pathlib import Path

import pytest

from kvfabric.engine.transport.address import MAX_UNIX_PATH_BYTES, listen, parse_address
from kvfabric.errors import ConfigError


@pytest.mark.parametrize("text", ["unix:/tmp/a.sock", "tcp:127.0.0.1:80", "tcp:[::1]:0"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "unix:", "tcp:", "tcp:host", "tcp:host:", "tcp:host:x", "tcp::80", "udp:h:1"]
)
def test_what_is_no_address_says_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Write unix:/path/of/socket or tcp:HOST:PORT"):
        parse_address(text)


def test_bounds_of_ports_and_paths() -> None:
    with pytest.raises(ConfigError, match="end at 65535"):
        parse_address("tcp:host:65536")
    with pytest.raises(ConfigError, match="use a shorter folder"):
        parse_address("unix:/" + "x" * MAX_UNIX_PATH_BYTES)


def test_a_dead_workers_socket_is_replaced_a_live_ones_is_not(tmp_path: Path) -> None:
    address = parse_address(f"unix:{tmp_path}/w")
    dead, _ = listen(address)
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o600, "for this user only"
    dead.close()  # the file stays, as after SIGKILL
    alive, _ = listen(address)
    with pytest.raises(ConfigError, match=r"cannot listen on unix:.*Choose another address"):
        listen(address)
    alive.close()


def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("precious")
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(parse_address(f"unix:{tmp_path}/w"))
    assert (tmp_path / "w").read_text() == "precious"
