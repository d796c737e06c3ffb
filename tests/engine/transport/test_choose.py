"""Which transport a cluster's workers get, by its name and where they run."""

import pytest
from fake_clusters import settings_of

from kvfabric.engine.executor_spec import FAKE, ExecutorSpec, make_executor
from kvfabric.engine.process_cluster import _transport_of
from kvfabric.engine.transport.choose import maps_pools
from kvfabric.engine.transport.port import Piece
from kvfabric.errors import ConfigError

UNIX, TCP = "unix:/tmp/x", "tcp:10.0.0.1:0"


def spec(device: str = "cpu") -> ExecutorSpec:
    return ExecutorSpec(model=FAKE, num_blocks=8, block_size=4, device=device)


@pytest.mark.parametrize(
    ("asked", "num_decode", "device", "taken"),
    [
        ("auto", 1, "cpu", "shared"),
        ("auto", 0, "cpu", "sockets"),
        ("auto", 1, "cuda:0", "sockets"),
        ("shared", 1, "cpu", "shared"),
        ("sockets", 1, "cpu", "sockets"),
        ("nixl", 1, "cuda:0", "nixl"),
    ],
)
def test_workers_of_one_host(
    asked: str, num_decode: int, device: str, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(num_decode=num_decode, kv_transport=asked)
    assert _transport_of(settings, spec(device)) == taken
    assert capsys.readouterr().err == ""


def test_a_gpus_kv_cache_moves_over_sockets_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_of(num_decode=1, kv_transport="shared")
    assert _transport_of(settings, spec("cuda:0")) == "sockets"
    assert capsys.readouterr().err == (
        "kvfabric: KV cache on cuda:0 cannot be shared between processes; it moves over sockets\n"
    )


def test_pools_are_mapped_on_one_host_only() -> None:
    names = "auto", "shared", "sockets", "nixl"
    assert [maps_pools(name, UNIX) for name in names] == [True, True, False, False]
    assert not maps_pools("auto", TCP)
    with pytest.raises(ConfigError, match=r"'shared' between hosts.*Write sockets"):
        maps_pools("shared", TCP)


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_executor_lies_where_its_transport_looks(is_shared: bool) -> None:
    """The fake one; the bytes its port copies out are those that the transport finds."""
    made = make_executor(spec(), is_shared=is_shared)
    assert (made.pool is not None) == is_shared
    data = bytes(range(64))
    made.executor.write_blocks([3], 0, 2, memoryview(data))
    ours = made.executor.read_blocks([3, 4], 0, 2)
    piece = Piece((3, 4), 0, 2)
    assert b"".join(made.memory.outgoing(piece)) == bytes(ours)
    assert made.memory.num_bytes(piece) == made.layout.wire_bytes(2, 2) == len(ours)
    if made.pool is not None:
        made.pool.close()
