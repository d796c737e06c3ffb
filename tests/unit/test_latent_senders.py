"""Which rank sends a latent that all ranks hold: the same bytes over other NICs (ADR 8)."""

from dataclasses import replace

import pytest
from controls import control, incoming, started
from hypothesis import given
from hypothesis import strategies as st
from plan_requests import plan_request, run_on

from kvfabric.app.models import load_geometry
from kvfabric.errors import ConfigError
from kvfabric.kvcache.resharding import KvResharding, LatentSenders, piece_bytes
from kvfabric.perf.handoff import HANDOFF_SETUP_NS, payload_rate_bps
from kvfabric.plan.fleet import handoff_bytes, handoff_bytes_in_turn
from kvfabric.plan.request import HandoffPolicy, PlanRequest, WorkerRequest
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.commands import KvArrived, Prefilled
from kvfabric.serving.coordinator_config import HandoffMode

KIMI_BYTES = 286_358_400  # 8,150 tokens, fp8: aiconfigurator issue 1380, as in ADR 8
NUM_TOKENS = 8_150
GBIT = 10**9


def resharding(
    senders: LatentSenders, *, tp_src: int = 8, tp_dst: int = 8, name: str = "kimi-k2"
) -> KvResharding:
    return KvResharding(
        load_geometry(name), tp_src=tp_src, tp_dst=tp_dst, dtype_bytes=1, senders=senders
    )


def test_first_rank_sends_all_to_the_first_rank() -> None:
    plan = resharding(LatentSenders.FIRST)
    assert plan.num_turns == 1
    assert plan.pair_bytes(NUM_TOKENS) == (KIMI_BYTES, 0, 0, 0, 0, 0, 0, 0)


def test_ranks_take_turns_at_sending_all() -> None:
    plan = resharding(LatentSenders.ROTATE)
    sent = [plan.pair_bytes(NUM_TOKENS, turn).index(KIMI_BYTES) for turn in range(10)]
    assert plan.num_turns == 8
    assert sent == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.parametrize(("tp_src", "tp_dst"), [(2, 8), (8, 2), (4, 4), (1, 8), (8, 1)])
def test_over_all_turns_every_rank_of_both_sides_has_its_share(tp_src: int, tp_dst: int) -> None:
    plan = resharding(LatentSenders.ROTATE, tp_src=tp_src, tp_dst=tp_dst)
    sent, received = [0] * tp_src, [0] * tp_dst
    for sizes_of in plan.turns():
        for (src, dst), size in zip(plan.pairs, sizes_of(NUM_TOKENS), strict=True):
            sent[src] += size
            received[dst] += size
    cycle_bytes = KIMI_BYTES * plan.num_turns
    assert sent == [cycle_bytes // tp_src] * tp_src
    assert received == [cycle_bytes // tp_dst] * tp_dst


def test_neighbouring_turns_use_other_source_ranks() -> None:
    plan = resharding(LatentSenders.ROTATE, tp_src=4, tp_dst=8)
    sources = [plan.pairs[sizes.index(max(sizes))][0] for sizes in _first_sizes(plan)]
    assert sources == [0, 1, 2, 3, 0, 1, 2, 3]


def _first_sizes(plan: KvResharding) -> list[tuple[int, ...]]:
    return [sizes_of(NUM_TOKENS) for sizes_of in plan.turns()]


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-235b-a22b", "gpt-oss-120b"])
@pytest.mark.parametrize("senders", LatentSenders)
def test_heads_are_sent_by_who_holds_them(name: str, senders: LatentSenders) -> None:
    """What is split, and the copies of repeated heads, do not change."""
    plan, usual = (resharding(s, name=name) for s in (senders, LatentSenders.ALL))
    assert plan.num_turns == 1
    assert plan.pair_bytes(NUM_TOKENS) == usual.pair_bytes(NUM_TOKENS)


@given(
    name=st.sampled_from(["deepseek-v3", "kimi-linear-48b-a3b", "llama-3.1-8b", "gpt-oss-120b"]),
    senders=st.sampled_from(LatentSenders),
    sides=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])),
    num_tokens=st.integers(0, 30_000),
    more=st.integers(0, 9_000),
    turn=st.integers(0, 20),
    num_groups=st.integers(1, 9),
)
def test_bytes_in_all_are_the_same_whoever_sends(
    *,
    name: str,
    senders: LatentSenders,
    sides: tuple[int, int],
    num_tokens: int,
    more: int,
    turn: int,
    num_groups: int,
) -> None:
    tp_src, tp_dst = sides
    plan, usual = (
        resharding(s, tp_src=tp_src, tp_dst=tp_dst, name=name) for s in (senders, LatentSenders.ALL)
    )
    before, sizes = plan.pair_bytes(num_tokens, turn), plan.pair_bytes(num_tokens + more, turn)
    assert sum(sizes) == sum(usual.pair_bytes(num_tokens + more))
    assert all(a <= b for a, b in zip(before, sizes, strict=True))
    pieces = [piece_bytes(before, sizes, group, num_groups) for group in range(num_groups)]
    moved = [sum(column) for column in zip(*pieces, strict=True)]
    assert moved == [b - a for a, b in zip(before, sizes, strict=True)]


def test_one_sender_of_copies_for_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="copies of a latent"):
        KvResharding(
            load_geometry("kimi-k2"),
            tp_src=8,
            tp_dst=8,
            copies_latent=True,
            senders=LatentSenders.FIRST,
        )


# ---------------------------------------------------------------------------- turns of the control


def first_rank(num_tokens: int) -> tuple[int, ...]:
    return (num_tokens, 0)


def second_rank(num_tokens: int) -> tuple[int, ...]:
    return (0, num_tokens)


@pytest.mark.parametrize("mode", HandoffMode)
def test_each_source_counts_its_own_turns(mode: HandoffMode) -> None:
    """Round robin over two sources: one count for both would give each always the same rank."""
    coordinator = control(
        num_prefill=2,
        rank_bytes=first_rank,
        rank_bytes_in_turn=(first_rank, second_rank),
        handoff=mode,
    )
    parts: list[tuple[RankTransfer, ...]] = []
    for request_id in range(6):
        coordinator.arrive(incoming(request_id), 0)
        coordinator.on_worker_event(request_id % 2, Prefilled(request_id, 20, 0), 100)
        (transfer,) = started(coordinator.on_reserved(request_id, 150))
        parts.append(transfer.parts)
        coordinator.on_transferred(transfer.transfer_id, 200)
        coordinator.check_invariants()
    assert [part[0] for part in parts] == [
        RankTransfer(0, 4, 10),
        RankTransfer(2, 4, 10),
        RankTransfer(1, 5, 10),
        RankTransfer(3, 5, 10),
        RankTransfer(0, 4, 10),
        RankTransfer(2, 4, 10),
    ]
    assert all(len(part) == 1 for part in parts)


def test_all_pieces_of_a_hand_off_come_from_the_same_rank() -> None:
    coordinator = control(
        rank_bytes=first_rank,
        rank_bytes_in_turn=(first_rank, second_rank),
        handoff=HandoffMode.LAYER_WISE,
        num_layer_groups=2,
    )
    for request_id, src in ((0, 0), (1, 1), (2, 0)):
        coordinator.arrive(incoming(request_id), 0)
        coordinator.on_worker_event(0, Prefilled(request_id, 20, 0), 100)
        (transfer,) = started(coordinator.on_reserved(request_id, 150))
        assert {part.src_gpu for part in transfer.parts} == {src}
        actions = coordinator.on_transferred(transfer.transfer_id, 200)
        assert KvArrived(request_id) in [getattr(action, "command", None) for action in actions]


# ---------------------------------------------------------------------------- whole runs


def lone_prompts(count: int) -> Workload:
    """Return prompts far apart, so that no hand-off meets another."""
    specs = tuple(
        RequestSpec(
            request_id=i,
            arrival_ns=i * 20 * 10**9,
            num_prompt_tokens=NUM_TOKENS,
            num_output_tokens=2,
            block_hashes=(),
        )
        for i in range(count)
    )
    return Workload(name="lone", requests=specs, hash_block_tokens=0, num_rows=count)


def kimi(senders: LatentSenders, num_requests: int = 1, **workers: object) -> PlanRequest:
    fleet: dict[str, object] = {"num_prefill": 1, "num_decode": 1, "tp": 8, "kv_dtype": "fp8"}
    request = plan_request(
        workers=WorkerRequest(num_blocks=2_000, **(fleet | workers)),  # type: ignore[arg-type]
        workload=lone_prompts(num_requests),
    )
    return replace(
        request, geometry=load_geometry("kimi-k2"), handoff=HandoffPolicy(senders=senders)
    )


@pytest.mark.parametrize(
    ("senders", "num_nics"),
    [(LatentSenders.ALL, 8), (LatentSenders.FIRST, 1), (LatentSenders.ROTATE, 1)],
)
def test_hand_off_takes_the_time_of_the_nics_it_uses(senders: LatentSenders, num_nics: int) -> None:
    """ADR 8: 5.8 ms on one NIC of 400 Gbit/s, 0.7 ms over all eight."""
    (record,) = run_on(kimi(senders)).records
    assert record.transfer_bytes == KIMI_BYTES
    assert record.reserved_ns is not None
    assert record.transferred_ns is not None
    wire_ns = record.transferred_ns - record.reserved_ns - HANDOFF_SETUP_NS
    expected_ns = KIMI_BYTES * 8 * 10**9 / num_nics / payload_rate_bps(400 * GBIT)
    assert wire_ns == pytest.approx(expected_ns, rel=1e-4)
    assert round(wire_ns / 1e6, 1) == (0.7 if num_nics == 8 else 5.8)


def test_context_parallel_ranks_send_to_other_receivers_in_turn() -> None:
    request = kimi(LatentSenders.ROTATE, prefill_cp=2, num_decode=2)
    pairs, sizes = handoff_bytes_in_turn(request)
    used = [
        [pair for pair, size in zip(pairs, of(NUM_TOKENS), strict=True) if size] for of in sizes
    ]
    assert used[0] == [(0, 0), (8 + 1, 1)]
    assert used[7] == [(7, 7), (8 + 0, 0)]
    assert all(sum(of(NUM_TOKENS)) == KIMI_BYTES for of in sizes)
    pairs, first = handoff_bytes(kimi(LatentSenders.FIRST, prefill_cp=2, num_decode=2))
    assert dict(zip(pairs, first(NUM_TOKENS), strict=True))[8, 0] == KIMI_BYTES // 2


@pytest.mark.parametrize("mode", HandoffMode)
@pytest.mark.parametrize("senders", LatentSenders)
def test_runs_move_the_same_bytes_whoever_sends(senders: LatentSenders, mode: HandoffMode) -> None:
    request = kimi(senders, 5, decode_tp=4, num_prefill=2, num_decode=4, decode_num_blocks=2_000)
    result = run_on(replace(request, handoff=replace(request.handoff, mode=mode)))
    assert [record.transfer_bytes for record in result.records] == [KIMI_BYTES] * 5


@pytest.mark.parametrize("senders", LatentSenders)
def test_run_of_split_heads_is_the_same_whoever_sends(senders: LatentSenders) -> None:
    request = plan_request()
    other = replace(request, handoff=replace(request.handoff, senders=senders))
    assert run_on(other).log_digest == run_on(request).log_digest
