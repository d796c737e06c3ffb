"""Fetches of prefixes, seen from the control: what it orders, and what it does when they fail."""

from dataclasses import replace

import pytest
from clusters import Cluster
from controls import cancelled, commands, record_of, started
from pool_clusters import PoolCluster, coordinator_config, pool_config

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import STORAGE, TierSpec
from kvfabric.protocol.record import Outcome
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.serving.actions import Action, IncomingRequest, StartRead
from kvfabric.serving.commands import AddRequest, Cancel, Cancelled, Finished, KvArrived, Prefilled
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_fetch import FIRST_FETCH_TRANSFER
from kvfabric.serving.prefix_placement import PlacementPolicy
from kvfabric.serving.router import SIGNAL_INTERVAL_NS, Router, RoutingPolicy

HASHES = (1, 2, 3, 4)
LATER = SIGNAL_INTERVAL_NS + 1  # reports no longer have what was sent before
CLUSTER = Cluster(num_prefill=2, hash_block_tokens=8, prefix_caching=False)


def _pool(**settings: object) -> KvPoolConfig:
    return pool_config(PoolCluster(cluster=CLUSTER, **settings))  # type: ignore[arg-type]


def _control(pool: KvPoolConfig, cluster: Cluster = CLUSTER) -> Coordinator:
    router = Router(
        RoutingPolicy.ROUND_ROBIN, num_prefill=cluster.num_prefill, num_decode=cluster.num_decode
    )
    return Coordinator(coordinator_config(cluster, pool), router)


def _arrive(control: Coordinator, request_id: int, now_ns: int = 0) -> tuple[int, AddRequest]:
    request = IncomingRequest(
        request_id=request_id, num_prompt_tokens=30, max_tokens=5, block_hashes=HASHES
    )
    ((worker, command),) = commands(control.arrive(request, now_ns))
    assert isinstance(command, AddRequest)
    return worker, command


def _computed_on_0(pool: KvPoolConfig, cluster: Cluster = CLUSTER) -> Coordinator:
    """Return a control that saw request 0 prefilled on worker 0; worker 1 is next in turn."""
    control = _control(pool, cluster)
    assert _arrive(control, 0)[0] == 0
    control.on_worker_event(0, Prefilled(0, 10, 0), 100)
    return control


def _fetching(control: Coordinator, now_ns: int = 200) -> list[Action]:
    """Let request 1 come to worker 1 and get its blocks there."""
    worker, command = _arrive(control, 1, now_ns)
    assert (worker, command.num_external_tokens) == (1, 24)
    return control.on_reserved(1, now_ns)


REMOTE = _pool(policy=PlacementPolicy.LEAST_LOADED)


def test_prefix_of_another_server_crosses_the_fabric_before_the_prefill() -> None:
    control = _computed_on_0(REMOTE)
    (transfer,) = started(_fetching(control))
    assert transfer.transfer_id == FIRST_FETCH_TRANSFER
    assert transfer.parts == (RankTransfer(0, 2, 72), RankTransfer(1, 3, 72))
    assert commands(control.on_transferred(FIRST_FETCH_TRANSFER, 300)) == [(1, KvArrived(1))]
    control.on_worker_event(1, Prefilled(1, 310, 24), 400)
    (end,) = control.on_worker_event(1, Finished(1, 1, 0), 400)
    record = record_of([end])
    assert (record.fetched_ns, record.num_fetched_tokens, record.num_cached_tokens) == (300, 24, 24)
    counts = control.pool_counts
    assert (counts.remote_tokens, counts.remote_bytes, counts.num_fetches) == (24, 144, 1)
    assert (counts.num_prompt_tokens, counts.hit_tokens) == (60, 24)


def test_what_hbm_turns_out_to_hold_is_not_fetched() -> None:
    control = _computed_on_0(REMOTE)
    _arrive(control, 1, 200)
    (transfer,) = started(control.on_reserved(1, 200, 12))
    assert transfer.num_bytes == 6 * 12
    control.on_transferred(transfer.transfer_id, 300)
    control.on_worker_event(1, Prefilled(1, 310, 24), 400)
    assert (control.pool_counts.hbm_tokens, control.pool_counts.remote_tokens) == (12, 12)


def test_nothing_is_fetched_that_is_all_in_hbm_by_then() -> None:
    control = _computed_on_0(REMOTE)
    _arrive(control, 1, 200)
    assert commands(control.on_reserved(1, 200, 24)) == [(1, KvArrived(1))]
    control.check_invariants()


def test_own_host_memory_and_storage_are_read_without_the_fabric() -> None:
    control = _computed_on_0(_pool())
    assert _arrive(control, 1, LATER)[0] == 0
    assert control.on_reserved(1, LATER) == [StartRead(FIRST_FETCH_TRANSFER, 0, 144)]
    control = _computed_on_0(
        _pool(policy=PlacementPolicy.LEAST_LOADED, storage_blocks=9, remote_bps=None)
    )
    assert _fetching(control) == [StartRead(FIRST_FETCH_TRANSFER, STORAGE, 144)]


def test_storage_on_the_fabric_sends_from_its_endpoints() -> None:
    pool = replace(
        _pool(policy=PlacementPolicy.LEAST_LOADED, storage_blocks=9, remote_bps=None),
        storage_gpus=(90, 91),
    )
    (transfer,) = started(_fetching(_computed_on_0(pool)))
    assert transfer.parts == (RankTransfer(90, 2, 72), RankTransfer(91, 3, 72))


def test_layer_wise_prefill_starts_at_once_and_its_step_awaits_the_bytes() -> None:
    control = _computed_on_0(replace(REMOTE, fetch_mode=FetchMode.LAYER_WISE))
    actions = _fetching(control)
    assert commands(actions) == [(1, KvArrived(1))]
    (transfer,) = started(actions)
    assert [getattr(action, "awaited_by", None) for action in actions] == [1, None]
    assert control.on_transferred(transfer.transfer_id, 300) == []


def test_fetch_cut_short_is_tried_once_more_and_then_computed() -> None:
    tight = replace(REMOTE, host=replace(REMOTE.host, capacity_blocks=3))
    control = _computed_on_0(tight)
    assert _arrive(control, 1, LATER)[0] == 1
    other = IncomingRequest(request_id=2, num_prompt_tokens=10, max_tokens=5, block_hashes=(9, 8))
    assert commands(control.arrive(other, LATER))[0][0] == 0
    control.on_worker_event(0, Prefilled(2, LATER, 0), LATER)  # block 3 goes for block 9
    assert commands(control.on_reserved(1, LATER)) == [(1, Cancel(1))]
    ((_, again),) = commands(control.on_worker_event(1, Cancelled(1), LATER))
    assert isinstance(again, AddRequest)
    assert again.num_external_tokens == 16
    control.on_worker_lost(0, LATER)
    assert commands(control.on_reserved(1, LATER)) == [(1, Cancel(1))]
    ((_, last),) = commands(control.on_worker_event(1, Cancelled(1), LATER))
    assert isinstance(last, AddRequest)
    assert last.num_external_tokens == 0
    assert control.pool_counts.num_fetch_fallbacks == 2
    control.check_invariants()


def test_late_fetch_is_given_up_and_its_prompt_computed() -> None:
    control = _computed_on_0(replace(REMOTE, fetch_deadline_ns=50))
    _fetching(control)
    assert control.next_deadline_ns() == 250
    actions = control.expire(250)
    assert cancelled(actions) == [FIRST_FETCH_TRANSFER]
    assert commands(actions) == [(1, Cancel(1))]
    assert control.next_deadline_ns() is None
    ((worker, again),) = commands(control.on_worker_event(1, Cancelled(1), 251))
    assert isinstance(again, AddRequest)
    assert (worker, again.num_external_tokens) == (1, 0)


def test_server_that_dies_takes_its_fetches_along_but_not_their_requests() -> None:
    control = _computed_on_0(REMOTE)
    _fetching(control)
    actions = control.on_worker_lost(0, 220)  # request 0 starts anew on worker 1
    assert cancelled(actions) == [FIRST_FETCH_TRANSFER]
    assert (1, Cancel(1)) in commands(actions)
    assert control.pool_counts.num_fetch_fallbacks == 1
    control.check_invariants()


def test_destination_that_dies_cancels_the_fetch_and_the_request_starts_anew() -> None:
    control = _computed_on_0(REMOTE)
    _fetching(control)
    actions = control.on_worker_lost(1, 220)
    assert cancelled(actions) == [FIRST_FETCH_TRANSFER]
    ((worker, _),) = commands(actions)
    assert worker == 0
    assert control.num_restarts == 1
    control.check_invariants()


def test_cancelled_request_cancels_its_fetch() -> None:
    control = _computed_on_0(REMOTE)
    _fetching(control)
    actions = control.cancel(1, 220)
    assert cancelled(actions) == [FIRST_FETCH_TRANSFER]
    assert record_of(actions).outcome is Outcome.ABORTED
    control.check_invariants()


def test_layer_wise_request_that_generates_where_its_fetch_fails_ends() -> None:
    pool = replace(REMOTE, fetch_mode=FetchMode.LAYER_WISE, fetch_deadline_ns=50)
    control = _computed_on_0(pool)
    _fetching(control)
    assert record_of(control.expire(250)).outcome is Outcome.ABORTED
    control.check_invariants()


def test_server_lives_as_long_as_one_of_its_workers() -> None:
    control = _computed_on_0(_pool(workers_per_server=2, policy=PlacementPolicy.LEAST_LOADED))
    control.on_worker_event(0, Finished(0, 1, 0), 110)
    control.on_worker_lost(0, 120)
    worker, command = _arrive(control, 1, 200)
    assert (worker, command.num_external_tokens) == (1, 24)
    control.on_worker_joined(0, 210)
    control.on_worker_lost(1, 220)
    control.on_worker_lost(0, 220)
    control.on_worker_joined(1, 230)
    assert _arrive(control, 2, 300)[1].num_external_tokens == 0


def test_pool_of_other_workers_or_other_blocks_is_refused() -> None:
    pool = _pool()
    with pytest.raises(ConfigError, match="servers of 1 workers, there are 2"):
        _control(replace(pool, worker_servers=(0,)))
    with pytest.raises(
        ConfigError, match="placement of blocks of 16 tokens, the workload hashes 8"
    ):
        _control(replace(pool, placement=replace(pool.placement, block_tokens=16)))
    for wrong in ({"hbm_blocks": -1}, {"directory_lag_ns": -1}, {"fetch_deadline_ns": 0}):
        with pytest.raises(ConfigError):
            replace(pool, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no GPU"):
        replace(pool, server_gpus=((0,), ()))
    with pytest.raises(ConfigError, match="without a storage tier"):
        replace(pool, placement=replace(pool.placement, storage_read_bps=1))
    assert replace(pool, storage=TierSpec(capacity_blocks=1, read_bps=1)).storage
