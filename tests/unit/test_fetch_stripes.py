"""Prefixes fetched from several servers at once: the same bytes, a run of blocks from each."""

from dataclasses import replace

import pytest
from clusters import Cluster, ConstantNetwork, workload_of
from controls import cancelled, commands, started
from hypothesis import given
from hypothesis import strategies as st
from pool_clusters import PoolCluster, build_pooled, coordinator_config, pool_config

from kvfabric.errors import ConfigError
from kvfabric.plan.pool import PoolRequest, TierRequest
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.actions import IncomingRequest
from kvfabric.serving.commands import Cancel, KvArrived, Prefilled
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.kv_directory import PrefixSources
from kvfabric.serving.kv_pool import PoolCounts
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_placement import (
    OWN_HOST,
    Fetch,
    PlacementConfig,
    PlacementPolicy,
    place_prompt,
    stripe_end,
)
from kvfabric.serving.router import Router, RoutingPolicy

BLOCK = 100
PLACEMENT = PlacementConfig(
    block_tokens=BLOCK,
    queue_tokens_per_s=10**6,
    prefill_ns=lambda num_tokens, _: 1_000 * num_tokens,
    kv_bytes=lambda num_tokens: num_tokens,
    host_read_bps=8 * 10**9,
    remote_read_bps=8 * 10**8,  # 10 ns for a token
    max_stripes=3,
)
HELD_BY_ALL = PrefixSources(
    workers=1, num_hbm=0, num_local=2, num_remote=12, remote_servers=0b11110
)


# ---------------------------------------------------------------------------- placement


def test_servers_with_the_fewest_bytes_to_send_share_the_blocks() -> None:
    placed = place_prompt(PLACEMENT, 1_250, [HELD_BY_ALL], [0], outgoing_bytes=[0, 50, 7, 0, 90])
    assert placed.fetches == (
        Fetch(OWN_HOST, 0, 2, 200),
        Fetch(3, 2, 6, 400),
        Fetch(2, 6, 9, 300),
        Fetch(1, 9, 12, 300),
    )
    assert placed.fetch_ns == 10 * 400  # the longest: server 3 sends 400 bytes, 2 has 307, 1 350


def test_busy_server_is_what_a_striped_fetch_waits_for() -> None:
    placed = place_prompt(PLACEMENT, 1_250, [HELD_BY_ALL], [0], outgoing_bytes=[0, 500, 7, 0, 900])
    assert placed.fetch_ns == 10 * 800


def test_nics_of_the_receiver_bound_what_stripes_can_save() -> None:
    config = replace(PLACEMENT, receive_bps=12 * 10**8)
    placed = place_prompt(config, 1_250, [HELD_BY_ALL], [0])
    assert placed.fetch_ns == 1_000 * 8 * 10**9 // (12 * 10**8) + 1  # rounded up


def test_no_more_servers_are_asked_than_blocks_are_missing() -> None:
    group = replace(HELD_BY_ALL, num_local=10)
    fetches = place_prompt(PLACEMENT, 1_250, [group], [0]).fetches
    assert [fetch.source for fetch in fetches] == [OWN_HOST, 1, 2]
    assert [fetch.num_tokens for fetch in fetches] == [1_000, 100, 100]


@given(
    num_local=st.integers(0, 11),
    servers=st.integers(1, 31),
    max_stripes=st.integers(1, 7),
    last=st.integers(-1, 5),
    outgoing=st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_stripes_are_one_run_without_gaps(
    *, num_local: int, servers: int, max_stripes: int, last: int, outgoing: list[int]
) -> None:
    group = replace(HELD_BY_ALL, num_local=num_local, remote_servers=servers)
    config = replace(PLACEMENT, max_stripes=max_stripes)
    fetches = place_prompt(config, 1_250, [group], [0], outgoing_bytes=outgoing, last=last).fetches
    far = [fetch for fetch in fetches if fetch.source != OWN_HOST]
    assert (
        len(far)
        == len({f.source for f in far})
        == min(max_stripes, servers.bit_count(), 12 - num_local)
    )
    assert [f.first_block for f in far] == [num_local, *(f.end_block for f in far[:-1])]
    assert far[-1].end_block == 12
    assert all(servers >> fetch.source & 1 for fetch in far)
    lengths = [fetch.num_tokens for fetch in far]
    assert max(lengths) - min(lengths) <= BLOCK
    once = place_prompt(
        replace(config, max_stripes=1), 1_250, [group], [0], outgoing_bytes=outgoing, last=last
    )
    assert once.fetches[-1].source == far[0].source


def test_less_than_one_stripe_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_stripes is 0"):
        replace(PLACEMENT, max_stripes=0)
    with pytest.raises(ConfigError, match="receive_bps is 0"):
        replace(PLACEMENT, receive_bps=0)


def test_stripes_of_a_run_end_at_its_end() -> None:
    ends, first = [], 3
    for num_left in (4, 3, 2, 1):
        first = stripe_end(first, 13, num_left)
        ends.append(first)
    assert ends == [6, 9, 11, 13]


# ---------------------------------------------------------------------------- control

HASHES = (1, 2, 3, 4)
CLUSTER = Cluster(num_prefill=3, hash_block_tokens=8, prefix_caching=False)


def striped(cluster: Cluster = CLUSTER, **settings: object) -> KvPoolConfig:
    pool = pool_config(
        PoolCluster(cluster=cluster, policy=PlacementPolicy.LEAST_LOADED, **settings)  # type: ignore[arg-type]
    )
    return replace(pool, placement=replace(pool.placement, max_stripes=2))


def control_of(pool: KvPoolConfig) -> Coordinator:
    router = Router(RoutingPolicy.ROUND_ROBIN, num_prefill=3, num_decode=0)
    return Coordinator(coordinator_config(CLUSTER, pool), router)


def arrive(control: Coordinator, request_id: int, worker: int) -> None:
    request = IncomingRequest(
        request_id=request_id, num_prompt_tokens=30, max_tokens=5, block_hashes=HASHES
    )
    ((chosen, _),) = commands(control.arrive(request, 0))
    assert chosen == worker


def held_by_two(pool: KvPoolConfig) -> Coordinator:
    """Return a control whose servers 0 and 1 hold the prompt that worker 2 has been given."""
    control = control_of(pool)
    for worker in (0, 1):
        arrive(control, worker, worker)
    for worker in (0, 1):
        control.on_worker_event(worker, Prefilled(worker, 10, 0), 100)
    arrive(control, 2, 2)
    return control


def test_two_servers_send_a_part_each_and_the_last_byte_lets_the_rest_be_computed() -> None:
    control = held_by_two(striped())
    first, second = started(control.on_reserved(2, 200))
    assert first.parts == (RankTransfer(0, 4, 48), RankTransfer(1, 5, 48))  # 2 of 3 blocks
    assert second.parts == (RankTransfer(2, 4, 24), RankTransfer(3, 5, 24))
    assert control.on_transferred(second.transfer_id, 300) == []
    assert commands(control.on_transferred(first.transfer_id, 400)) == [(2, KvArrived(2))]
    control.on_worker_event(2, Prefilled(2, 410, 24), 500)
    counts = control.pool_counts
    assert (counts.remote_tokens, counts.remote_bytes, counts.num_fetches) == (24, 144, 1)
    control.check_invariants()


def test_what_one_server_has_dropped_the_other_sends() -> None:
    """Server 0 has only one of the two blocks it was to send; server 1 sends the other two."""
    control = held_by_two(striped())
    assert control._fetches is not None
    control._fetches.pool._tiers._hosts[0].remove([2])
    first, second = started(control.on_reserved(2, 200))
    assert (first.num_bytes, second.num_bytes) == (48, 96)
    control.check_invariants()


def test_server_that_dies_takes_the_whole_fetch_with_it() -> None:
    control = held_by_two(striped())
    transfers = [transfer.transfer_id for transfer in started(control.on_reserved(2, 200))]
    actions = control.on_worker_lost(0, 250)
    assert sorted(cancelled(actions)) == transfers
    assert (2, Cancel(2)) in commands(actions)
    control.check_invariants()


def test_ranks_take_turns_at_receiving() -> None:
    def of_rank(rank: int, num_tokens: int) -> tuple[int, int]:
        return (6 * num_tokens, 0) if rank == 0 else (0, 6 * num_tokens)

    turns = (lambda n: of_rank(0, n), lambda n: of_rank(1, n))
    control = held_by_two(replace(striped(), rank_bytes=turns[0], rank_bytes_in_turn=turns))
    parts = [transfer.parts for transfer in started(control.on_reserved(2, 200))]
    assert parts == [(RankTransfer(0, 4, 96),), (RankTransfer(2, 4, 48),)]
    assert control._fetches is not None
    again = control._fetches.pool.find(2, HASHES, (0, 1), 0, 24)
    assert [part.rank_bytes for part in again] == [(0, 96), (0, 48)]
    other = control._fetches.pool.find(0, HASHES, (1,), 0, 24)  # its own turns
    assert [part.rank_bytes for part in other] == [(144, 0)]


# ---------------------------------------------------------------------------- whole runs


def run_of(max_stripes: int, fetch_mode: FetchMode) -> tuple[PoolCounts, int]:
    """Return what became of a prompt that three servers hold, and the bytes on the network."""
    cluster = Cluster(
        num_prefill=4,
        num_blocks=200,
        max_model_len=400,
        max_num_batched_tokens=64,
        hash_block_tokens=8,
        prefix_caching=False,
        signal_interval_ns=1,
    )
    settings = PoolCluster(cluster=cluster, policy=PlacementPolicy.LEAST_LOADED)
    settings = replace(settings, fetch_mode=fetch_mode, min_gain_ns=-(10**9))
    specs = [
        RequestSpec(
            request_id=i,
            arrival_ns=i * 100_000,
            num_prompt_tokens=200,
            num_output_tokens=3,
            block_hashes=tuple(range(20)) + tuple(range(1000 * (i + 1), 1000 * (i + 1) + 5)),
        )
        for i in range(12)
    ]
    network = ConstantNetwork()
    simulation, control = build_pooled(
        settings, workload_of(specs, 8), network, max_stripes=max_stripes
    )
    result = simulation.run(check=True)
    assert len(result.records) == 12
    return control.pool_counts, network.moved_bytes


@pytest.mark.parametrize("fetch_mode", FetchMode)
def test_bytes_and_hits_are_the_same_in_stripes(fetch_mode: FetchMode) -> None:
    whole, striped_counts = (run_of(max_stripes, fetch_mode) for max_stripes in (1, 3))
    assert whole == striped_counts
    counts, moved = whole
    assert counts.remote_tokens == 3 * 160  # the first prompts of workers 1, 2 and 3
    assert counts.remote_bytes == moved == 6 * counts.remote_tokens


def test_stripes_of_a_plan_are_those_asked_for() -> None:
    tier = TierRequest(capacity_bytes=1, read_bytes_per_s=1)
    assert PoolRequest(host=tier).fetch_stripes == 1
