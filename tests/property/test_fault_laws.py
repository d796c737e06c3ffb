"""Laws of the control under deaths, joins, cancellations, expiries and failures in any order."""

from itertools import product

import pytest
from faulty_cluster import (
    DEADLINE_NS,
    HASH_TOKENS,
    MAX_MODEL_LEN,
    MAX_TOKENS,
    RANK_PAIRS,
    SCHEDULER,
    FaultyCluster,
    rank_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.coordinator_config import (
    CoordinatorConfig,
    HandoffMode,
    OnExpiry,
    Reservation,
)
from kvfabric.serving.router import RoutingPolicy

MODES = list(product(Reservation, HandoffMode, OnExpiry))


def config(
    reservation: Reservation = Reservation.PREFILL_FIRST,
    handoff: HandoffMode = HandoffMode.WHOLE_PROMPT,
    on_expiry: OnExpiry = OnExpiry.FAIL,
    *,
    num_workers: int = 5,
    num_decode: int = 2,
    max_restarts: int = 1,
) -> CoordinatorConfig:
    return CoordinatorConfig(
        worker_gpus=tuple((2 * worker, 2 * worker + 1) for worker in range(num_workers)),
        num_decode=num_decode,
        block_size=SCHEDULER.block_size,
        hash_block_tokens=HASH_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        rank_bytes=rank_bytes,
        rank_pairs=RANK_PAIRS,
        handoff_deadline_ns=DEADLINE_NS,
        reservation=reservation,
        handoff=handoff,
        num_layer_groups=3,
        on_expiry=on_expiry,
        max_restarts=max_restarts,
    )


def assert_record(record: RequestRecord, cluster: FaultyCluster) -> None:
    """INV-3 for the record, and the right number of tokens however often it started anew."""
    assert record.outcome not in {Outcome.UNFINISHED, Outcome.REJECTED}
    assert record.num_restarts <= cluster.config.max_restarts
    instants = [
        record.arrival_ns,
        record.routed_ns,
        record.prefill_start_ns,
        record.prefill_end_ns,
        record.transferred_ns,
        record.first_token_ns,
        record.finished_ns,
    ]
    known = [instant for instant in instants if instant is not None]
    assert known == sorted(known)
    if record.reserved_ns is not None and record.transferred_ns is not None:
        assert record.routed_ns is not None
        assert record.routed_ns <= record.reserved_ns <= record.transferred_ns
    if record.outcome is Outcome.FINISHED:
        expected = min(cluster.output_lengths[record.request_id], MAX_TOKENS)
        assert record.num_output_tokens == expected
        assert record.first_token_ns is not None
        assert record.transferred_ns is not None


def run(cluster: FaultyCluster, num_steps: int) -> None:
    """Let so many things happen and then everything end; nothing may be lost (INV-1, INV-4)."""
    for _ in range(num_steps):
        cluster.step()
        cluster.check()
    cluster.drain()
    cluster.check()
    assert sorted(cluster.records) == list(range(len(cluster.prompts)))
    for record in cluster.records.values():
        assert_record(record, cluster)
    assert cluster.num_held_blocks == 0
    assert not cluster.moving
    assert sum(cluster.coordinator.counts.values()) == len(cluster.prompts)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(part.value for part in mode))
def test_nothing_is_lost_in_thousands_of_events(
    mode: tuple[Reservation, HandoffMode, OnExpiry],
) -> None:
    cluster = FaultyCluster(config(*mode), RoutingPolicy.PREFIX_AWARE, seed=MODES.index(mode))
    run(cluster, 3000)
    # the run is worth something only if all of it came up
    counts = cluster.coordinator.counts
    assert min(counts[Outcome.FINISHED], counts[Outcome.ABORTED], counts[Outcome.FAILED]) > 0
    assert min(cluster.num_deaths, cluster.coordinator.num_restarts) > 10
    assert cluster.coordinator.num_expired > 0


def test_nothing_is_lost_by_aggregated_workers() -> None:
    run(FaultyCluster(config(num_decode=0), RoutingPolicy.LEAST_LOADED, seed=0), 3000)


@settings(max_examples=60)
@given(
    st.sampled_from(MODES),
    st.sampled_from(list(RoutingPolicy)),
    st.integers(0, 1 << 32),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 3),
)
def test_nothing_is_lost_in_small_clusters(
    mode: tuple[Reservation, HandoffMode, OnExpiry],
    policy: RoutingPolicy,
    seed: int,
    num_prefill: int,
    num_decode: int,
    max_restarts: int,
) -> None:
    """INV-1, INV-3, INV-4, INV-8, INV-10, INV-11."""
    settings_of_run = config(
        *mode,
        num_workers=num_prefill + num_decode,
        num_decode=num_decode,
        max_restarts=max_restarts,
    )
    run(FaultyCluster(settings_of_run, policy, seed), 150)


# ---------------------------------------------------------------------- transfers that fail


class FlakyCluster(FaultyCluster):
    """A side of a transfer often says that it failed, sometimes the other one that it arrived."""

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.break_transfer()
        super().step()

    def break_transfer(self) -> None:
        highest = max(self.moving, default=0) + 1
        transfer_id = self.random.choice([*self.moving, self.random.randint(0, highest)])
        actions = self.coordinator.on_transfer_failed(transfer_id, self.now_ns)
        self.act(actions, -1)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(part.value for part in mode))
def test_nothing_is_lost_where_transfers_fail(
    mode: tuple[Reservation, HandoffMode, OnExpiry],
) -> None:
    cluster = FlakyCluster(config(*mode), RoutingPolicy.PREFIX_AWARE, seed=MODES.index(mode))
    run(cluster, 3000)
    counts = cluster.coordinator.counts
    assert min(counts[Outcome.FINISHED], counts[Outcome.ABORTED], counts[Outcome.FAILED]) > 0
    assert min(cluster.num_deaths, cluster.coordinator.num_restarts) > 10
    assert cluster.coordinator.num_broken > 5


@settings(max_examples=60)
@given(
    st.sampled_from(MODES),
    st.integers(0, 1 << 32),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 3),
)
def test_nothing_is_lost_where_transfers_fail_in_small_clusters(
    mode: tuple[Reservation, HandoffMode, OnExpiry],
    seed: int,
    num_prefill: int,
    num_decode: int,
    max_restarts: int,
) -> None:
    """INV-1, INV-3, INV-4, INV-8, INV-10, INV-11."""
    settings_of_run = config(
        *mode,
        num_workers=num_prefill + num_decode,
        num_decode=num_decode,
        max_restarts=max_restarts,
    )
    run(FlakyCluster(settings_of_run, RoutingPolicy.ROUND_ROBIN, seed), 150)
