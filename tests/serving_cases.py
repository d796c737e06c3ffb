"""Drawn requests and clusters for the laws of the serving core."""

from clusters import Cluster
from hypothesis import strategies as st

from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.coordinator_config import HandoffMode, Reservation
from kvfabric.serving.router import RoutingPolicy

HASH_TOKENS = 8


@st.composite
def requests(draw: st.DrawFn, max_size: int = 16) -> list[RequestSpec]:
    """Draw requests with equal arrival times, shared prefixes and follow-up turns among them."""
    now_ns = 0
    specs: list[RequestSpec] = []
    for request_id in range(draw(st.integers(1, max_size))):
        now_ns += draw(st.sampled_from([0, 0, 300, 2000, 9000]))
        prompt = draw(st.integers(1, 60))
        group = draw(st.integers(0, 2))
        hashes = tuple(1000 * group + i for i in range(-(-prompt // HASH_TOKENS)))
        after = draw(st.sampled_from([None, None, request_id - 1]))
        is_turn = (
            after is not None and after >= 0 and all(s.after_request_id != after for s in specs)
        )
        specs.append(
            RequestSpec(
                request_id=request_id,
                arrival_ns=now_ns,
                num_prompt_tokens=prompt,
                num_output_tokens=draw(st.integers(1, 50)),
                block_hashes=hashes,
                after_request_id=after if is_turn else None,
                think_ns=draw(st.sampled_from([0, 700])),
                max_tokens=draw(st.sampled_from([None, None, 1, 20, 30])),
            )
        )
    return specs


@st.composite
def clusters(draw: st.DrawFn, *, max_decode: int = 2) -> Cluster:
    """Draw small clusters, tight enough that requests queue and are preempted."""
    seqs = draw(st.integers(1, 6))
    num_prefill = draw(st.integers(1, 3))
    return Cluster(
        num_prefill=num_prefill,
        num_decode=draw(st.integers(0, max_decode)),
        num_blocks=draw(st.integers(29, 60)),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(max(seqs, 4), 40)),
        max_model_len=112,
        policy=draw(st.sampled_from(list(RoutingPolicy))),
        hash_block_tokens=HASH_TOKENS,
        prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        reservation=draw(st.sampled_from(list(Reservation))),
        handoff=draw(st.sampled_from(list(HandoffMode))),
        lockstep=draw(st.sampled_from([(), (), (tuple(range(num_prefill)),)])),
        num_layer_groups=draw(st.sampled_from([1, 2, 4])),
    )


cancellations = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 60_000)), max_size=15)


def limit(spec: RequestSpec, cluster: Cluster) -> int:
    """Return the most output tokens the control allows a request."""
    room = cluster.max_model_len - spec.num_prompt_tokens
    return room if spec.max_tokens is None else min(spec.max_tokens, room)


def assert_ordered(record: RequestRecord) -> None:
    """INV-3: the instants of a request never run backwards; blocks are reserved before KV moves."""
    instants = [
        record.arrival_ns,
        record.routed_ns,
        record.queued_ns,
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
