"""Which worker takes a request, and from how old a picture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.serving.commands import WorkerSignal
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.serving.signals import SignalBoard

INTERVAL_NS = 50
HASH_TOKENS = 16
BY_LOAD = [RoutingPolicy.LEAST_LOADED, RoutingPolicy.PREFIX_AWARE]


def router_of(
    policy: RoutingPolicy, num_prefill: int = 2, num_decode: int = 0, *, max_index: int = 100
) -> Router:
    return Router(
        policy,
        num_prefill=num_prefill,
        num_decode=num_decode,
        signal_interval_ns=INTERVAL_NS,
        max_index_entries=max_index,
    )


def route(router: Router, *hashes: int, tokens: int = 100, now_ns: int = 0) -> int:
    return router.choose_prefill(tokens, hashes, HASH_TOKENS, now_ns)


def queued(num_tokens: int) -> WorkerSignal:
    return WorkerSignal(num_queued_tokens=num_tokens, num_prompt_tokens=num_tokens)


def test_round_robin_takes_workers_in_turn() -> None:
    router = router_of(RoutingPolicy.ROUND_ROBIN, 3)
    assert [route(router) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_shares_a_slow_stream_evenly() -> None:
    # https://github.com/AMD-AGI/Infera/pull/103: 448 requests, one at a time, two workers
    router = router_of(RoutingPolicy.ROUND_ROBIN)
    chosen = [route(router, now_ns=1000 * i) for i in range(448)]
    assert [chosen.count(0), chosen.count(1)] == [224, 224]


@pytest.mark.parametrize("policy", BY_LOAD)
def test_burst_under_one_stale_report_is_spread(policy: RoutingPolicy) -> None:
    # stale signals must not send everything to the worker that looked idle
    router = router_of(policy, 4)
    chosen = [route(router, 100 + i) for i in range(40)]
    assert [chosen.count(worker) for worker in range(4)] == [10] * 4


@pytest.mark.parametrize("policy", BY_LOAD)
def test_burst_makes_up_for_a_difference_in_the_stale_report(policy: RoutingPolicy) -> None:
    router = router_of(policy)
    router.observe(0, queued(250), 0)
    chosen = [route(router, 100 + i, now_ns=INTERVAL_NS) for i in range(6)]
    assert chosen == [1, 1, 1, 0, 1, 0]  # by tokens: 0, 100, 200 | 250, 300 | 350


def test_decode_workers_share_a_burst_under_one_stale_report() -> None:
    router = router_of(RoutingPolicy.ROUND_ROBIN, 2, 3)
    chosen = [router.choose_decode(100, 0) for _ in range(9)]
    assert [chosen.count(worker) for worker in (2, 3, 4)] == [3, 3, 3]


@pytest.mark.parametrize("policy", BY_LOAD)
def test_slow_stream_does_not_all_go_to_one_worker(policy: RoutingPolicy) -> None:
    # https://github.com/AMD-AGI/Infera/pull/103: 448 requests, each after the last has ended, went
    # 448 : 0; the second worker's prefix cache was never used
    router = router_of(policy)
    chosen = [route(router, 100 + i, now_ns=i * INTERVAL_NS) for i in range(448)]
    assert [chosen.count(0), chosen.count(1)] == [224, 224]


def test_slow_stream_does_not_all_go_to_one_decode_worker() -> None:
    router = router_of(RoutingPolicy.ROUND_ROBIN, 1, 2)
    chosen = [router.choose_decode(100, i * INTERVAL_NS) for i in range(448)]
    assert [chosen.count(1), chosen.count(2)] == [224, 224]


@pytest.mark.parametrize("policy", BY_LOAD)
def test_busy_worker_is_avoided(policy: RoutingPolicy) -> None:
    router = router_of(policy)
    router.observe(0, queued(5000), 0)
    assert route(router, 1, now_ns=INTERVAL_NS) == 1


def test_miss_goes_to_the_idle_worker_whatever_it_has_cached() -> None:
    # https://github.com/sgl-project/sglang/pull/14532: A has a small tree and is overloaded
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    router.observe(0, queued(9000), 0)
    for i in range(20):
        assert route(router, 1000 + i, now_ns=INTERVAL_NS) == 1  # B's tree grows
    assert route(router, 7, now_ns=INTERVAL_NS) == 1


def test_known_prefix_goes_where_it_was_sent() -> None:
    router = router_of(RoutingPolicy.PREFIX_AWARE, 3)
    route(router, 90)
    first = route(router, 1, 2, 3)
    assert first != 0
    assert route(router, 1, 2, 3, 4, tokens=66, now_ns=INTERVAL_NS) == first  # 48 of 66 tokens


def test_short_known_prefix_draws_nobody() -> None:
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    first = route(router, 1, 2, 3)
    others = [route(router, 1, 2, 3, 10 * k, tokens=96, now_ns=k * INTERVAL_NS) for k in (1, 2)]
    assert sorted(others) == [0, 1]
    assert others[0] != first


def test_known_prefix_does_not_outweigh_a_long_queue() -> None:
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    first = route(router, 1, 2, 3)
    router.observe(first, queued(5000), 0)
    assert route(router, 1, 2, 3, now_ns=INTERVAL_NS) != first


def test_prefix_counts_only_from_its_front() -> None:
    # https://github.com/llm-d/llm-d-inference-sim/pull/701: a hole ends the hit
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    route(router, 90, tokens=10)
    assert route(router, 1, 2, 3, tokens=64) == 1
    assert route(router, 9, 2, 3, tokens=20, now_ns=INTERVAL_NS) == 0


def test_forgotten_prefix_no_longer_attracts() -> None:
    router = router_of(RoutingPolicy.PREFIX_AWARE, max_index=1)
    router.observe(0, queued(5000), 0)
    assert [route(router, key, now_ns=INTERVAL_NS) for key in (1, 8)] == [1, 1]  # 8 replaces 1
    router.observe(0, queued(0), INTERVAL_NS)
    router.observe(1, queued(1), INTERVAL_NS)
    assert route(router, 1, now_ns=2 * INTERVAL_NS) == 0


def test_head_of_a_prefix_outlives_its_tail_in_the_index() -> None:
    router = router_of(RoutingPolicy.PREFIX_AWARE, max_index=2)
    route(router, 90)
    assert route(router, 1, 2, 3, 4) == 1  # only 1 and 2 are kept
    assert route(router, 1, 7, tokens=30, now_ns=INTERVAL_NS) == 1  # 16 of 30 tokens


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_change_is_seen_only_after_the_interval_it_happened_in(policy: RoutingPolicy) -> None:
    fresh, told = router_of(policy), router_of(policy)
    told.observe(0, queued(5000), 10)
    times = range(11, INTERVAL_NS, 7)
    assert [route(told, t, now_ns=t) for t in times] == [route(fresh, t, now_ns=t) for t in times]


def test_decode_goes_to_the_fewest_prompt_tokens() -> None:
    router = router_of(RoutingPolicy.ROUND_ROBIN, 1, 2)
    router.observe(1, queued(300), 0)
    router.observe(2, queued(200), 0)
    chosen = [router.choose_decode(80, INTERVAL_NS) for _ in range(3)]
    assert chosen == [2, 2, 1]  # 200 + 80 + 80 passes 300


def test_what_was_sent_counts_until_a_report_can_hold_it() -> None:
    router = router_of(RoutingPolicy.LEAST_LOADED)
    assert route(router) == 0
    router.observe(0, queued(100), 1)
    assert route(router, now_ns=2) == 1
    router.observe(1, queued(40), 3)
    assert route(router, now_ns=INTERVAL_NS) == 1  # 40 + 100 against 100 + 100


# ---------------------------------------------------------------------- lost workers


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_lost_worker_is_never_chosen(policy: RoutingPolicy) -> None:
    router = router_of(policy, 3, 2)
    for worker in (1, 3):
        router.lose(worker)
    chosen = [route(router, 100 + i, now_ns=30 * i) for i in range(40)]
    assert [chosen.count(worker) for worker in range(3)] == [20, 0, 20]
    assert {router.choose_decode(100, 1200 + i) for i in range(9)} == {4}


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_worker_that_joined_again_takes_its_share(policy: RoutingPolicy) -> None:
    router = router_of(policy, 2)
    router.observe(0, queued(9000), 0)
    router.lose(0)
    router.join(0)
    chosen = [route(router, 100 + i, now_ns=INTERVAL_NS) for i in range(10)]
    assert [chosen.count(worker) for worker in range(2)] == [5, 5]  # its old queue is gone


def test_what_was_sent_to_a_lost_worker_is_not_held_against_it() -> None:
    router = router_of(RoutingPolicy.LEAST_LOADED)
    assert route(router, tokens=500) == 0
    router.lose(0)
    router.join(0)
    assert [route(router, tokens=10), route(router, tokens=10)] == [1, 0]


def test_prefixes_of_a_lost_worker_are_forgotten() -> None:
    router = router_of(RoutingPolicy.PREFIX_AWARE)
    first = route(router, 1, 2, 3)
    router.lose(first)
    router.join(first)
    other = 1 - first
    assert route(router, 1, 2, 3, now_ns=INTERVAL_NS) == other  # its turn, as on a miss


def test_router_knows_which_kinds_of_workers_are_left() -> None:
    router = router_of(RoutingPolicy.ROUND_ROBIN, 1, 2)
    seen = [(router.has_prefill, router.has_decode)]
    for worker in (0, 2, 1):
        router.lose(worker)
        seen.append((router.has_prefill, router.has_decode))
    router.join(0)
    seen.append((router.has_prefill, router.has_decode))
    assert seen == [(True, True), (False, True), (False, True), (False, False), (True, False)]


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_choosing_without_a_live_worker_is_a_caller_that_did_not_ask(policy: RoutingPolicy) -> None:
    router = router_of(policy, 1)
    router.lose(0)
    with pytest.raises(AssertionError, match="no live worker"):
        route(router)


class NaiveBoard:
    """Keeps every change and looks up the state just before an interval begins."""

    def __init__(self, num_workers: int) -> None:
        self.changes: list[list[tuple[int, WorkerSignal]]] = [[] for _ in range(num_workers)]

    def seen(self, now_ns: int) -> list[WorkerSignal]:
        start_ns = now_ns // INTERVAL_NS * INTERVAL_NS
        before = [[s for t, s in changes if t < start_ns] for changes in self.changes]
        return [signals[-1] if signals else WorkerSignal() for signals in before]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans()), max_size=60))
def test_board_shows_every_worker_as_of_the_last_interval(
    steps: list[tuple[int, int, bool]],
) -> None:
    board, naive = SignalBoard(3, INTERVAL_NS), NaiveBoard(3)
    now_ns = 0
    for number, (worker, gap_ns, is_change) in enumerate(steps):
        now_ns += gap_ns
        if is_change:
            board.put(worker, queued(number), now_ns)
            naive.changes[worker].append((now_ns, queued(number)))
        seen = naive.seen(now_ns)
        assert board.queued_tokens(now_ns) == [signal.num_queued_tokens for signal in seen]
        assert board.prompt_tokens(now_ns) == [signal.num_prompt_tokens for signal in seen]
