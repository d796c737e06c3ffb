"""Reads of a memory tier wait for each other."""

from kvfabric.kvcache.tier_links import TierLinks
from kvfabric.kvcache.tiers import STORAGE, TierSpec

HOST = TierSpec(capacity_blocks=1, read_bps=8_000_000_000)  # a byte per ns
SLOW = TierSpec(capacity_blocks=1, read_bps=4_000_000_000)


def test_reads_of_one_server_follow_each_other() -> None:
    links = TierLinks(2, HOST)
    assert links.read(0, 100, 1_000) == 1_100
    assert links.read(0, 50, 1_010) == 1_150
    assert links.read(1, 50, 1_010) == 1_060  # another server
    assert links.read(0, 1, 2_000) == 2_001  # idle again


def test_storage_is_one_link_for_all() -> None:
    links = TierLinks(2, HOST, SLOW)
    assert links.read(STORAGE, 100, 0) == 200
    assert links.read(STORAGE, 100, 0) == 400
    assert links.read(1, 100, 0) == 100
