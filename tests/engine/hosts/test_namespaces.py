"""Prefill and decode workers in network namespaces of their own: three hosts as far as IP goes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from fake_clusters import PATIENCE_S, Outputs, request
from joined_clusters import assert_right, remote_cluster

from kvfabric.engine.hosts.joining import Role
from kvfabric.serving.coordinator_config import HandoffMode

Start = Callable[..., subprocess.Popen[str]]
_SUBNET = f"10.{128 + os.getpid() // 250 % 64}.{os.getpid() % 250}"  # others may run beside it


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=PATIENCE_S)  # noqa: S607


@pytest.fixture
def namespaces() -> Iterator[tuple[str, list[str]]]:
    """Give the host's address on a bridge, and two namespaces with addresses behind it."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs ip and root to make network namespaces")
    tag = f"kv{os.getpid() % 100000}"
    bridge, names = f"{tag}br", [f"{tag}a", f"{tag}b"]
    try:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{_SUBNET}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for i, name in enumerate(names):
                _ip("netns", "add", name)
                _ip("link", "add", f"{name}o", "type", "veth", "peer", f"{name}i", "netns", name)
                _ip("link", "set", f"{name}o", "master", bridge, "up")
                _ip("-n", name, "addr", "add", f"{_SUBNET}.{i + 2}/24", "dev", f"{name}i")
                _ip("-n", name, "link", "set", f"{name}i", "up")
        except subprocess.SubprocessError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield f"{_SUBNET}.1", names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # noqa: S607
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)  # noqa: S607


@pytest.mark.parametrize("handoff", HandoffMode)
def test_kv_cache_moves_between_hosts(
    namespaces: tuple[str, list[str]], start: Start, handoff: HandoffMode
) -> None:
    host, names = namespaces
    outputs = Outputs()
    cluster = remote_cluster(outputs, host=host, num_decode=1, handoff=handoff, num_layer_groups=2)
    for role, name in zip((Role.PREFILL, Role.DECODE), names, strict=True):
        start(cluster.address, role, within=["ip", "netns", "exec", name])
    assert cluster.wait_ready(PATIENCE_S)
    asked = [request(i, range(7 * i, 7 * i + 30), 8) for i in range(8)]
    with cluster:
        addresses = [worker.address for worker in cluster.loop.driver.workers]
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
    assert_right(outputs, asked)
    assert addresses[1].startswith(f"tcp:{_SUBNET}.3:")
    assert cluster.loop.driver.moved_bytes > 0
