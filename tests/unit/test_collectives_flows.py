from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.routes.load_balancing import AssigningBalancer, make_load_balancer
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.traffic.collective_run import CollectiveResult, run_collective
from kvfabric.fabric.traffic.collectives import (
    CollectiveFlow,
    Flows,
    all_to_all,
    direct_all_gather,
    direct_reduce_scatter,
    one_after_the_other,
    ring_all_gather,
    ring_reduce_scatter,
    ring_send,
)
from kvfabric.fabric.traffic.parallel_traffic import (
    AttentionLayer,
    dispatch_and_combine,
    exchange_heads,
    pass_kv,
    pass_query,
)

GBIT = 10**9
RANKS = (3, 1, 4, 15)
SHARDS = (10, 20, 30, 40)
LLAMA_70B = AttentionLayer(num_tokens=32_768, num_query_heads=64, num_kv_heads=8, head_dim=128)


def sent(flows: Sequence[CollectiveFlow]) -> Counter[int]:
    total: Counter[int] = Counter()
    for flow in flows:
        total[flow.src] += flow.num_bytes
    return total


def received(flows: Sequence[CollectiveFlow]) -> Counter[int]:
    total: Counter[int] = Counter()
    for flow in flows:
        total[flow.dst] += flow.num_bytes
    return total


def run(flows: Flows, *, gpus_per_server: int = 1, start_ns: int = 0) -> CollectiveResult:
    """Run flows over one switch with NICs of 8 Gbit/s: one byte per ns."""
    topology = build_topology(
        "clos", 16, radix=16, nic_rate_bps=8 * GBIT, gpus_per_server=gpus_per_server
    )
    balancer = AssigningBalancer(PathTable(topology))
    engine = MaxMinEngine(balancer.channel_capacity_bps)
    result = run_collective(flows, balancer, engine, start_ns=start_ns)
    assert balancer.num_loaded_channels == 0
    assert engine.num_active == 0
    return result


# --- what travels ---------------------------------------------------------------------------------


def test_ring_send_goes_once_around() -> None:
    pairs = [(flow.src, flow.dst) for flow in ring_send(RANKS, 5)]
    assert pairs == [(3, 1), (1, 4), (4, 15), (15, 3)]
    assert sent(ring_send(RANKS, 5)) == dict.fromkeys(RANKS, 5)


@pytest.mark.parametrize("gather", [ring_all_gather, direct_all_gather])
def test_all_gather_brings_everyone_what_the_others_have(
    gather: Callable[[Sequence[int], Sequence[int]], Flows],
) -> None:
    flows = gather(RANKS, SHARDS)
    assert received(flows) == {
        rank: sum(SHARDS) - own for rank, own in zip(RANKS, SHARDS, strict=True)
    }


def holdings(ranks: Sequence[int], flows: Flows, first_shard: int) -> dict[int, set[int]]:
    """Return which shards every rank has in the end, passing on only what it has."""
    size = len(ranks)
    has = {rank: {place} for place, rank in enumerate(ranks)}
    for number, flow in enumerate(flows):
        step, place = divmod(number, size)
        shard = (place + first_shard - step) % size
        if first_shard == 0:
            assert shard in has[flow.src]
        has[flow.dst].add(shard)
    return has


@given(st.integers(1, 9))
def test_ring_all_gather_passes_on_only_what_came(size: int) -> None:
    flows = ring_all_gather(range(size), [1] * size)
    assert all(len(h) == size for h in holdings(range(size), flows, 0).values())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_ring_reduce_scatter_ends_where_each_shard_belongs(shards: list[int]) -> None:
    size = len(shards)
    flows = ring_reduce_scatter(range(size), shards)
    # a sum travels as what its sender has of it so far
    parts = {(rank, shard): {rank} for rank in range(size) for shard in range(size)}
    for number, flow in enumerate(flows):
        step, place = divmod(number, size)
        shard = (place - 1 - step) % size
        assert flow.num_bytes == shards[shard]
        parts[flow.dst, shard] = parts[flow.dst, shard] | parts[flow.src, shard]
    assert all(parts[rank, rank] == set(range(size)) for rank in range(size))


def test_direct_reduce_scatter_brings_everyone_its_own_shard_of_all_others() -> None:
    flows = direct_reduce_scatter(RANKS, SHARDS)
    assert received(flows) == {rank: 3 * own for rank, own in zip(RANKS, SHARDS, strict=True)}


@given(st.integers(1, 9), st.integers(0, 100))
def test_equal_shards_move_the_share_of_the_others(size: int, shard: int) -> None:
    ranks, shards = range(size), [shard] * size
    for flows in (
        ring_all_gather(ranks, shards),
        direct_all_gather(ranks, shards),
        ring_reduce_scatter(ranks, shards),
        direct_reduce_scatter(ranks, shards),
        all_to_all(ranks, shard),
    ):
        expected = dict.fromkeys(ranks, (size - 1) * shard) if size > 1 else {}
        assert sent(flows) == received(flows) == expected


def test_next_step_of_a_ring_waits_for_what_came_and_for_its_own_message() -> None:
    flows = ring_all_gather(RANKS, SHARDS)
    assert [flow.after for flow in flows[:4]] == [()] * 4
    assert [flow.after for flow in flows[4:8]] == [(0, 3), (0, 1), (1, 2), (2, 3)]
    assert [flow.after for flow in flows[8:]] == [(4, 7), (4, 5), (5, 6), (6, 7)]


def test_collectives_follow_each_other_rank_by_rank() -> None:
    joined = one_after_the_other(ring_send((0, 1, 2), 1), ring_send((0, 1, 2), 1))
    assert joined[3].after == (0, 1, 2)  # 0 to 1: all that GPUs 0 and 1 had to do
    apart = one_after_the_other(ring_send((0, 1), 1), ring_send((2, 3), 1))
    assert [flow.after for flow in apart] == [()] * 4


@pytest.mark.parametrize("ranks", [(), (1, 2, 1)])
def test_ranks_that_cannot_be_are_refused(ranks: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="each once"):
        all_to_all(ranks, 1)


def test_every_rank_has_a_shard() -> None:
    with pytest.raises(ConfigError, match="one shard per rank"):
        ring_all_gather(RANKS, SHARDS[:-1])


# --- context and expert parallelism, bytes per rank of the project's notes, section 4 -------------


@given(st.sampled_from([1, 2, 4, 8]))
def test_context_parallel_bytes_per_rank(size: int) -> None:
    layer, ranks = LLAMA_70B, range(size)
    share = Fraction(size - 1, size)
    tokens, value = layer.num_tokens, layer.head_dim * layer.bytes_per_value
    heads_q, heads_kv = layer.num_query_heads, layer.num_kv_heads
    kv = share * tokens * 2 * heads_kv * value
    query = 2 * share * tokens * heads_q * value
    heads = share * Fraction(tokens, size) * (2 * heads_q + 2 * heads_kv) * value
    for flows, expected in (
        (pass_kv(ranks, layer), kv),
        (pass_query(ranks, layer), query),
        (exchange_heads(ranks, layer), heads),
    ):
        assert sent(flows) == (dict.fromkeys(ranks, expected) if size > 1 else {})


def test_kv_of_a_70b_layer_over_eight_ranks() -> None:
    """Llama-3-70B: 327,680 bytes per token in 80 layers; 7/8 of 32,768 tokens of one layer."""
    assert sent(pass_kv(range(8), LLAMA_70B))[0] == 327_680 // 80 * 32_768 * 7 // 8


def test_tokens_that_do_not_divide_are_shared_out_when_kv_is_passed() -> None:
    layer = AttentionLayer(num_tokens=10, num_query_heads=4, num_kv_heads=1, head_dim=1)
    assert received(pass_kv(range(4), layer)) == {0: 28, 1: 28, 2: 32, 3: 32}
    for flows_of in (pass_query, exchange_heads):
        with pytest.raises(ConfigError, match="Write a multiple of 4 tokens"):
            flows_of(range(4), layer)


def test_kv_heads_fewer_than_ranks_are_replicated() -> None:
    layer = AttentionLayer(num_tokens=64, num_query_heads=32, num_kv_heads=8, head_dim=1)
    flows = exchange_heads(range(16), layer)
    assert sent(flows)[0] == 15 * 4 * (2 * 2 + 2 * 1) * 2  # two query heads and one KV head each
    with pytest.raises(ConfigError, match="KV heads over 12 ranks"):
        exchange_heads(range(12), AttentionLayer(
            num_tokens=144, num_query_heads=24, num_kv_heads=16, head_dim=1))  # fmt: skip


def test_attention_layer_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        AttentionLayer(num_tokens=0, num_query_heads=1, num_kv_heads=1, head_dim=1)


def test_experts_get_and_return_tokens() -> None:
    flows = dispatch_and_combine(range(4), pair_tokens=3, dispatch_bytes=7, combine_bytes=14)
    assert sent(flows) == dict.fromkeys(range(4), 3 * 3 * (7 + 14))
    assert {flow.after for flow in flows[:12]} == {()}
    assert all(flow.after for flow in flows[12:])


# --- how long it takes ----------------------------------------------------------------------------


def test_one_flow_runs_at_the_rate_of_its_nic() -> None:
    result = run((CollectiveFlow(0, 1, 1000),), start_ns=50)
    assert (result.duration_ns, result.end_ns, result.network_bytes) == (1000, (1050,), 1000)


@pytest.mark.parametrize("size", [2, 5, 16])
def test_ring_takes_as_many_steps_as_there_are_others(size: int) -> None:
    for flows in (ring_all_gather, ring_reduce_scatter):
        assert run(flows(range(size), [1000] * size)).duration_ns == (size - 1) * 1000


@pytest.mark.parametrize("size", [2, 5, 16])
def test_direct_takes_as_long_as_the_ring_on_a_switch_that_does_not_block(size: int) -> None:
    for flows in (direct_all_gather, direct_reduce_scatter):
        assert run(flows(range(size), [1000] * size)).duration_ns == (size - 1) * 1000
    assert run(all_to_all(range(size), 1000)).duration_ns == (size - 1) * 1000


def test_ring_is_as_fast_as_its_longest_shard_lets_it() -> None:
    """The shard of 40 goes three times; whoever waits for it waits."""
    assert run(ring_all_gather(range(4), (10, 10, 10, 40))).duration_ns == 3 * 40


def test_flows_within_a_server_take_no_time_and_those_after_them_start_at_once() -> None:
    flows = (
        CollectiveFlow(0, 1, 500),
        CollectiveFlow(1, 9, 100, after=(0,)),
        CollectiveFlow(9, 10, 0, after=(1,)),
        CollectiveFlow(10, 0, 100, after=(2, 2)),
    )
    result = run(flows, gpus_per_server=8)
    assert result.end_ns == (0, 100, 100, 200)
    assert result.network_bytes == 200


def test_no_flows_take_no_time() -> None:
    assert run(()).duration_ns == 0


@pytest.mark.parametrize("after", [(0,), (1,), (-1,)])
def test_flow_that_waits_for_itself_or_a_later_one_is_refused(after: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="stand before it"):
        run((CollectiveFlow(0, 1, 1, after=after), CollectiveFlow(1, 0, 1)))


def test_other_flows_on_the_engine_are_left_alone() -> None:
    topology = build_topology("clos", 16, radix=16, nic_rate_bps=8 * GBIT, gpus_per_server=1)
    balancer = make_load_balancer("ecmp", topology)
    engine = MaxMinEngine(balancer.channel_capacity_bps)
    (part,) = balancer.route(0, 1, 100, 0)
    engine.start_flows(0, [part.channels], [part.num_bytes])
    result = run_collective((CollectiveFlow(0, 1, 1000),), balancer, engine)
    assert result.end_ns == (1100,)


@given(st.data())
def test_flows_start_after_those_they_wait_for(data: st.DataObject) -> None:
    gpu = st.integers(0, 15)
    flows: list[CollectiveFlow] = []
    for number in range(data.draw(st.integers(1, 12))):
        places = st.sets(st.integers(0, number - 1), max_size=3) if number else st.just(set[int]())
        after = tuple(sorted(data.draw(places)))
        num_bytes = data.draw(st.integers(0, 1000))
        flows.append(CollectiveFlow(data.draw(gpu), data.draw(gpu), num_bytes, after))
    result = run(tuple(flows))
    for flow, end in zip(flows, result.end_ns, strict=True):
        start = max((result.end_ns[before] for before in flow.after), default=0)
        crosses = flow.src != flow.dst
        assert end >= start + (flow.num_bytes if crosses else 0)
    assert result.duration_ns == max(result.end_ns)
