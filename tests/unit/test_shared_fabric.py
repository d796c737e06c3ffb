"""Collectives of prefill workers and hand-offs on the same NICs slow each other.

One context-parallel prefill worker of two servers, two decode workers of one each. Two prompts are
handed off, one to each receiver, while the ranks exchange the KV cache of a third. Every GPU of the
sender then has three flows of equal size on its NIC: its sixteenth of each prompt's KV cache to
decode, and half of its eighth of the third prompt's to its twin. With u for such a flow alone on a
NIC, and s for the fixed time before a hand-off starts:

- exchange alone: u. Hand-offs alone: 2 u, as each receiver takes in two such flows per NIC.
- together: the exchange goes alone for s, then all have a third: it ends after 3 u - 2 s, and the
  hand-offs, which have half each after that, last 3 u - s.
"""

from dataclasses import replace

import pytest
from clusters import LinearModel
from plan_requests import BYTES_PER_TOKEN, GBIT, plan_request, simulation_on

from kvfabric.perf.context_parallel import CpExchange
from kvfabric.perf.handoff import HANDOFF_SETUP_NS, payload_rate_bps
from kvfabric.plan.request import PlanRequest, WorkerRequest
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import RequestSpec, Workload

NUM_TOKENS = 8_000
NIC_BPS = 10 * GBIT
ALONE_NS = NUM_TOKENS * BYTES_PER_TOKEN / 16 * 8 * 10**9 / payload_rate_bps(NIC_BPS)  # 53 ms


def sharing(num_prompts: int, exchange: CpExchange) -> PlanRequest:
    """Return prompts that come at once; two of them are computed in one step."""
    specs = tuple(
        RequestSpec(
            request_id=i,
            arrival_ns=0,
            num_prompt_tokens=NUM_TOKENS,
            num_output_tokens=2,
        )
        for i in range(num_prompts)
    )
    request = plan_request(
        workers=WorkerRequest(
            num_prefill=1,
            num_decode=2,
            tp=8,
            prefill_cp=2,
            cp_exchange=exchange,
            max_num_batched_tokens=2 * NUM_TOKENS,
        ),
        workload=Workload(
            name="at once", requests=specs, hash_block_tokens=0, num_rows=num_prompts
        ),
    )
    network = replace(request.network, nic_rate_bps=NIC_BPS)
    return replace(request, network=network, step_model=LinearModel())


def run_of(request: PlanRequest, *, has_exchange: bool = True) -> list[RequestRecord]:
    simulation, _ = simulation_on(request, "clos", "spray")
    if not has_exchange:
        for worker in simulation._workers:
            worker.traffic_of = None
    return list(simulation.run(check=True).records)


def wire_ns(record: RequestRecord) -> int:
    assert record.transferred_ns is not None
    assert record.reserved_ns is not None
    return record.transferred_ns - record.reserved_ns - HANDOFF_SETUP_NS


def prefill_ns(record: RequestRecord) -> int:
    assert record.prefill_end_ns is not None
    assert record.prefill_start_ns is not None
    return record.prefill_end_ns - record.prefill_start_ns


@pytest.mark.parametrize("exchange", [CpExchange.ALL_GATHER_KV, CpExchange.RING_KV])
def test_hand_offs_and_exchanges_slow_each_other(exchange: CpExchange) -> None:
    quiet = run_of(sharing(2, exchange), has_exchange=False)
    (lone,) = run_of(sharing(1, exchange))
    both = run_of(sharing(3, exchange))
    for record in quiet:
        assert wire_ns(record) == pytest.approx(2 * ALONE_NS, rel=1e-3)
    assert prefill_ns(lone) == pytest.approx(ALONE_NS, rel=5e-3)
    for record in both[:2]:
        assert wire_ns(record) == pytest.approx(3 * ALONE_NS - HANDOFF_SETUP_NS, rel=3e-3)
    assert prefill_ns(both[2]) == pytest.approx(3 * ALONE_NS - 2 * HANDOFF_SETUP_NS, rel=3e-3)
