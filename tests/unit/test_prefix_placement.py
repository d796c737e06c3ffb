"""Placement of prompts: hits against load, fetches against computing."""

from dataclasses import replace

import pytest

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import STORAGE
from kvfabric.serving.kv_directory import PrefixSources
from kvfabric.serving.prefix_placement import (
    OWN_HOST,
    Fetch,
    PlacementConfig,
    PlacementPolicy,
    overlapped_ns,
    place_prompt,
    usable_blocks,
)

BLOCK = 100

# Computing takes 10 ns per token, queues are worked off as fast, a token has 1 byte. To fetch
# one takes 1 ns from the own host, 2 ns from another server and 4 ns from storage.
CONFIG = PlacementConfig(
    block_tokens=BLOCK,
    queue_tokens_per_s=100_000_000,
    prefill_ns=lambda num_tokens, _history: 10 * num_tokens,
    kv_bytes=lambda num_tokens: num_tokens,
    host_read_bps=8_000_000_000,
    remote_read_bps=4_000_000_000,
    storage_read_bps=2_000_000_000,
)
NOTHING = PrefixSources(0b11)


def _sources(**fields: int) -> PrefixSources:
    given = {"workers": 0b1, **fields}
    given.setdefault("num_local", given.get("num_hbm", 0))
    given.setdefault("num_remote", given["num_local"])
    given.setdefault("num_storage", given["num_local"])
    return PrefixSources(**given)


def test_last_token_and_partial_blocks_are_no_hits() -> None:
    assert [usable_blocks(n, 100) for n in (0, 1, 100, 101, 200, 201)] == [0, 0, 0, 1, 1, 2]


def test_prompt_without_hits_goes_to_the_shorter_queue() -> None:
    placed = place_prompt(CONFIG, 250, [NOTHING], [300, 200])
    assert (placed.worker, placed.fetches, placed.num_computed_tokens) == (1, (), 250)
    assert (placed.queue_ns, placed.fetch_ns, placed.prefill_ns) == (2_000, 0, 2_500)
    assert placed.total_ns == 4_500


def test_equal_workers_take_turns() -> None:
    assert place_prompt(CONFIG, 250, [NOTHING], [0, 0], last=0).worker == 1
    assert place_prompt(CONFIG, 250, [NOTHING], [0, 0], last=1).worker == 0


def test_tokens_of_a_placement_add_up_to_the_prompt() -> None:
    group = _sources(num_hbm=1, num_local=3, num_remote=5, remote_servers=0b10)
    placed = place_prompt(CONFIG, 777, [group], [0])
    assert placed.num_hbm_tokens == 100
    assert placed.fetches == (Fetch(OWN_HOST, 1, 3, 200), Fetch(1, 3, 5, 200))
    assert placed.num_computed_tokens == 277
    # Both fetches run at once: 200 ns and 400 ns.
    assert (placed.fetch_ns, placed.prefill_ns, placed.total_ns) == (400, 2_770, 3_170)


def test_busy_holder_loses_to_an_idle_worker_that_fetches() -> None:
    holder = PrefixSources(0b01, num_hbm=5, num_local=5, num_remote=5, num_storage=5)
    other = PrefixSources(0b10, num_remote=5, remote_servers=0b01)
    # Holder: 500 left to compute. Other: 500 fetched in 1,000 ns, then the same: 100 tokens ahead.
    assert place_prompt(CONFIG, 1_000, [holder, other], [99, 0]).worker == 0
    placed = place_prompt(CONFIG, 1_000, [holder, other], [101, 0])
    assert (placed.worker, placed.fetches) == (1, (Fetch(0, 0, 5, 500),))


def test_policies_differ_in_what_they_weigh() -> None:
    holder = PrefixSources(0b01, num_hbm=5, num_local=5, num_remote=5, num_storage=5)
    other = PrefixSources(0b10, num_remote=5, remote_servers=0b01)
    queued = [300, 0]
    chosen = {
        policy: place_prompt(replace(CONFIG, policy=policy), 1_000, [holder, other], queued)
        for policy in PlacementPolicy
    }
    # By load alone and by the pool: the idle one. By what is local: 300 + 500 against 1,000.
    assert chosen[PlacementPolicy.LEAST_LOADED].worker == 1
    assert chosen[PlacementPolicy.LOCAL_PREFIX].worker == 0
    assert chosen[PlacementPolicy.POOL_PREFIX].worker == 1
    assert chosen[PlacementPolicy.LEAST_LOADED].fetches == (Fetch(0, 0, 5, 500),)


@pytest.mark.parametrize(
    ("rate_bps", "is_fetched"), [(800_000_000, False), (800_000_001, False), (810_000_000, True)]
)
def test_fetch_has_to_beat_computing(rate_bps: int, *, is_fetched: bool) -> None:
    # 10 ns per token computed: 8 bits in 10 ns is 800 Mbit/s; times are rounded up to 1 ns.
    config = replace(CONFIG, remote_read_bps=rate_bps)
    group = _sources(num_remote=2, remote_servers=0b10)
    assert bool(place_prompt(config, 250, [group], [0]).fetches) is is_fetched


def test_fetch_must_save_more_than_the_least_gain() -> None:
    group = _sources(num_remote=2, remote_servers=0b10)  # 400 ns against 2,000 ns
    for gain_ns, is_fetched in ((1_599, True), (1_600, False)):
        placed = place_prompt(replace(CONFIG, min_gain_ns=gain_ns), 250, [group], [0])
        assert bool(placed.fetches) is is_fetched


def test_set_up_time_keeps_short_fetches_away() -> None:
    group = _sources(num_remote=2, remote_servers=0b10)
    for setup_ns, is_fetched in ((1_599, True), (1_600, False)):
        placed = place_prompt(replace(CONFIG, fetch_setup_ns=setup_ns), 250, [group], [0])
        assert bool(placed.fetches) is is_fetched


def test_longer_run_on_slow_storage_wins_only_if_quicker() -> None:
    # Remote 2 blocks: 400 + 10 x 800. Storage n blocks: 400 n + 10 x (1,000 - 100 n).
    for num_storage, source in ((2, 1), (3, STORAGE)):
        group = _sources(num_remote=2, remote_servers=0b10, num_storage=num_storage)
        assert place_prompt(CONFIG, 1_000, [group], [0]).fetches[0].source == source


def test_no_rate_means_no_fetch() -> None:
    config = replace(CONFIG, remote_read_bps=None, storage_read_bps=None)
    group = _sources(num_remote=5, remote_servers=0b10, num_storage=6)
    assert place_prompt(config, 1_000, [group], [0]).fetches == ()


def test_source_with_the_fewest_bytes_to_send_is_read() -> None:
    group = _sources(num_remote=5, remote_servers=0b1110)
    placed = place_prompt(CONFIG, 1_000, [group], [0], outgoing_bytes=[0, 70, 30, 70])
    assert placed.fetches[0].source == 2
    assert placed.fetch_ns == 2 * (500 + 30)
    # Without that knowledge they take turns.
    assert [
        place_prompt(CONFIG, 1_000, [group], [0], last=last).fetches[0].source
        for last in (-1, 1, 2, 3)
    ] == [1, 2, 3, 1]


def test_hot_source_makes_computing_the_better_choice() -> None:
    group = _sources(num_remote=2, remote_servers=0b10)
    assert place_prompt(CONFIG, 250, [group], [0], outgoing_bytes=[0, 800]).fetches == ()


@pytest.mark.parametrize("num_layers", [1, 2, 3, 80])
@pytest.mark.parametrize(("fetch", "compute"), [(0, 5), (7, 0), (7, 7), (3, 11), (11, 3)])
def test_layers_overlap_as_a_two_stage_line(num_layers: int, fetch: int, compute: int) -> None:
    # Each layer: fetched after the one before, computed once fetched and the one before is done.
    fetched = computed = 0
    for _ in range(num_layers):
        fetched += fetch
        computed = max(fetched, computed) + compute
    assert overlapped_ns(fetch * num_layers, compute * num_layers, num_layers) == computed


def test_overlap_makes_fetches_worth_more() -> None:
    group = _sources(num_remote=2, remote_servers=0b10)
    config = replace(CONFIG, num_layers=10)
    placed = place_prompt(config, 250, [group], [0])
    assert (placed.fetch_ns, placed.prefill_ns, placed.total_ns) == (400, 500, 540)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_tokens is 0"):
        replace(CONFIG, block_tokens=0)
    with pytest.raises(ConfigError, match="remote_read_bps is 0"):
        replace(CONFIG, remote_read_bps=0)
