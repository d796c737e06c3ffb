"""Laws of the serving core while workers die and come back, clients leave and leases run out."""

from dataclasses import replace

from clusters import Cluster, ConstantNetwork, build, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_cases import HASH_TOKENS, cancellations, clusters, requests

from kvfabric.protocol.record import Outcome
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.coordinator_config import OnExpiry
from kvfabric.sim.simulation import RunResult, Simulation

# (worker, dies at, comes back so much later or never)
deaths = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 60_000),
        st.one_of(st.none(), st.integers(0, 20_000)),
    ),
    max_size=4,
)
leases = st.sampled_from([1 << 60, 20_000, 3_000])


def troubled(
    specs: list[RequestSpec],
    cluster: Cluster,
    cancels: list[tuple[int, int]],
    died: list[tuple[int, int, int | None]],
) -> Simulation:
    """Return a simulation in which all of that will happen."""
    simulation = build(cluster, workload_of(specs, HASH_TOKENS), ConstantNetwork())
    for request_id, time_ns in cancels:
        simulation.cancel_at(request_id, time_ns)
    for place, time_ns, pause_ns in died:
        worker = place % (cluster.num_prefill + cluster.num_decode)
        simulation.lose_worker_at(worker, time_ns)
        if pause_ns is not None:
            simulation.join_worker_at(worker, time_ns + pause_ns)
    return simulation


@settings(max_examples=150)
@given(
    requests(),
    clusters(),
    cancellations,
    deaths,
    leases,
    st.sampled_from(list(OnExpiry)),
    st.integers(0, 2),
)
def test_every_request_ends_once_and_no_block_is_left(  # noqa: PLR0917 — one per fault
    specs: list[RequestSpec],
    cluster: Cluster,
    cancels: list[tuple[int, int]],
    died: list[tuple[int, int, int | None]],
    lease_ns: int,
    on_expiry: OnExpiry,
    max_restarts: int,
) -> None:
    """INV-1, INV-3, INV-4, INV-10: checked at every instant; jumping changes nothing either."""
    results: list[RunResult] = []
    for max_iterations in (1 << 62, 1):
        changed = replace(
            cluster,
            handoff_deadline_ns=lease_ns,
            on_expiry=on_expiry,
            max_restarts=max_restarts,
            max_iterations=max_iterations,
        )
        simulation = troubled(specs, changed, cancels, died)
        results.append(simulation.run(check=True))
        assert simulation.num_held_blocks == 0
    jump, single = results
    assert [record.request_id for record in jump.records] == [spec.request_id for spec in specs]
    ended = {Outcome.FINISHED, Outcome.ABORTED, Outcome.FAILED}
    assert all(record.outcome in ended for record in jump.records)
    assert jump.records == single.records
    assert jump.log_digest == single.log_digest


def test_request_of_a_dead_worker_is_computed_by_another() -> None:
    specs = [RequestSpec(request_id=0, arrival_ns=0, num_prompt_tokens=20, num_output_tokens=30)]
    result = troubled(specs, Cluster(num_prefill=2), [], [(0, 5_000, None)]).run(check=True)
    (record,) = result.records
    assert (record.outcome, record.num_restarts, record.num_output_tokens) == (
        Outcome.FINISHED,
        1,
        30,
    )


def test_without_a_live_worker_a_request_fails_and_is_counted() -> None:
    specs = [RequestSpec(request_id=0, arrival_ns=0, num_prompt_tokens=20, num_output_tokens=30)]
    result = troubled(specs, Cluster(), [], [(0, 5_000, None)]).run(check=True)
    assert [record.outcome for record in result.records] == [Outcome.FAILED]
