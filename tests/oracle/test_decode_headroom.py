"""Room for hand-offs in the decode pool, against a published sweep of ``max_num_seqs``.

Source: https://github.com/ai-dynamo/aiconfigurator/pull/1380, comments of 2026-08-09:
Kimi-K2.5-NVFP4 on 8 x B200, 4 prefill and 4 decode GPUs (data-parallel attention), vLLM 0.22 with
NixlConnector, prompts of 8,150 and answers of 1,024 tokens, fp8 latent KV cache.

| max_num_seqs | utilization | headroom | waiting for KV (median) | KV usage (median) | requests/s |
|---|---|---|---|---|---|
| 18 | 0.92 | 11.1 | 7.5 | 57.2 % | 3.71 |
| 24 | 0.92 | 4.2 | 3.0 | 75.4 % | 1.58 |
| 24 | 0.94 | 16.1 | 0 | 20.4 % | 2.66 |

Reproduced: the law; that from 18 to 24 fewer hand-offs find room; that more memory at the same
``max_num_seqs`` serves more (1.58 < 2.66); that raising it past what the pool holds can cut
throughput (24 to 32: 18 % here). The cut comes from preemption: decode workers compute prompts
again while their batch waits. It depends on the load: of 12 loads tried (96 to 256 users, hand-offs
of 0.05, 2 and 8 s) 24 to 32 gave -18, -9 and -6 % in three, within 2 % in five, a gain in four.

Not reproduced: the published drop at 24 already, by 57 % and without preemption. Admission alone
cannot give it: as long as neither an iteration nor a hand-off takes longer with ``max_num_seqs``
and nothing is computed twice, a larger batch never serves less. The published figures agree. Of
75.4 % x 28.2 sequences 3.0 are in flight and 18.3 decode; at 1.58 / 4 requests/s per GPU they stay
46 s, 45 ms per token: the mean published there, beside a median of 16.6 ms. So iterations stalled
most of the time, and the source does not say on what (its four decode GPUs share each iteration).
"""

import functools
from dataclasses import dataclass

import pytest
from clusters import ConstantNetwork

from kvfabric.catalog.models import model_config
from kvfabric.kvcache.geometry import kv_bytes_per_token
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.plan.headroom import DecodeHeadroom
from kvfabric.plan.steady_state import SteadyState, steady_state
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.step import StepShape
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator, CoordinatorConfig
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.units import GIB, NS_PER_S
from kvfabric.workload.arrivals import ClosedLoop
from kvfabric.workload.generator import GeneratorConfig, generate
from kvfabric.workload.lengths import ConstantLength

PROMPT, OUTPUT = 8150, 1024
SEQ = PROMPT + OUTPUT
BLOCK = 64
NUM_PREFILL = NUM_DECODE = 4
NUM_ROUNDS = 6
WIRE_NS = 2 * NS_PER_S


class SteadyIterations:
    """Decode iterations of the published median, whatever the batch; prompts by the token."""

    source = Source(SourceKind.ASSUMED, "test double")

    def __init__(self, iteration_ns: int, prompt_token_ns: int) -> None:
        self._iteration_ns, self._prompt_token_ns = iteration_ns, prompt_token_ns

    def mixed_step_ns(self, shape: StepShape) -> int:
        num_tokens = sum(num for num, _ in shape.prefill)
        return self._iteration_ns + self._prompt_token_ns * num_tokens

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        del num_decodes, context_tokens
        return num_iterations * self._iteration_ns

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        del num_decodes, context_tokens
        return min(max_iterations, max(1, -(-elapsed_ns // self._iteration_ns)))


DECODE_MODEL = SteadyIterations(16_600_000, NS_PER_S // PROMPT)  # 1 s to compute a prompt again
PREFILL_MODEL = SteadyIterations(0, NS_PER_S // 4 // PROMPT)  # never the bottleneck


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: the largest decode batch, and how many whole sequences the pool holds."""

    max_num_seqs: int
    pool_seqs: float

    @property
    def num_blocks(self) -> int:
        return round(self.pool_seqs * SEQ) // BLOCK + 1


BS18 = Row(18, 29.1)
BS24 = Row(24, 28.2)
BS24_MORE_MEMORY = Row(24, 40.1)
BS32 = Row(32, 28.2)
BS32_MORE_MEMORY = Row(32, 40.1)


def scheduler(num_blocks: int, max_num_seqs: int) -> Scheduler:
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192,
        max_model_len=SEQ,
        enable_prefix_caching=False,
    )
    return Scheduler(config)


@functools.cache
def run(row: Row, num_users: int = 128) -> tuple[SteadyState, tuple[RequestRecord, ...], int]:
    """Return the steady part, the records, and the preemptions."""
    config = GeneratorConfig(
        arrivals=ClosedLoop(num_users, ramp_up_ns=20 * NS_PER_S),
        prompt=ConstantLength(PROMPT),
        output=ConstantLength(OUTPUT),
        num_requests=num_users * NUM_ROUNDS,
        ignore_eos=True,
    )
    workload = generate(config, seed=1)
    lengths = {spec.request_id: spec.num_output_tokens for spec in workload.requests}
    prefill = [
        (scheduler(10**5, 256), SimExecutor(PREFILL_MODEL, lengths, samples_first_token=False))
        for _ in range(NUM_PREFILL)
    ]
    decode = [
        (
            scheduler(row.num_blocks, row.max_num_seqs),
            SimExecutor(DECODE_MODEL, lengths, samples_first_token=True),
        )
        for _ in range(NUM_DECODE)
    ]
    control = CoordinatorConfig(
        worker_gpus=tuple((gpu,) for gpu in range(NUM_PREFILL + NUM_DECODE)),
        num_decode=NUM_DECODE,
        block_size=BLOCK,
        hash_block_tokens=0,
        max_model_len=SEQ,
        rank_bytes=lambda _: (1,),
        handoff_deadline_ns=1 << 60,
    )
    router = Router(RoutingPolicy.ROUND_ROBIN, num_prefill=NUM_PREFILL, num_decode=NUM_DECODE)
    simulation = Simulation(
        SimulationConfig(),
        workload,
        Coordinator(control, router),
        [*prefill, *decode],
        ConstantNetwork(latency_ns=WIRE_NS),
    )
    result = simulation.run()
    return steady_state(workload, result.records), result.records, result.num_preemptions


def requests_per_s(row: Row, num_users: int = 128) -> float:
    return run(row, num_users)[0].requests_per_s


def mean_staged(row: Row, num_users: int) -> float:
    """Return the hand-offs per decode worker that hold blocks and do not decode yet (Little)."""
    steady, records, _ = run(row, num_users)
    staged_ns = [
        record.first_token_ns - record.reserved_ns
        for record in records[2 * num_users : -num_users]
        if record.first_token_ns is not None and record.reserved_ns is not None
    ]
    per_worker = steady.requests_per_s / NUM_DECODE
    return per_worker * sum(staged_ns) / len(staged_ns) / NS_PER_S


def headroom_of(row: Row) -> DecodeHeadroom:
    return DecodeHeadroom(
        pool_tokens=round(row.pool_seqs * SEQ), seq_tokens=SEQ, max_num_seqs=row.max_num_seqs
    )


@pytest.mark.parametrize(
    ("row", "published"), [(BS18, 11.1), (BS24, 4.2), (BS24_MORE_MEMORY, 16.1)]
)
def test_headroom_of_the_published_settings(row: Row, published: float) -> None:
    # the source rounds down in its formula and not in its table
    assert headroom_of(row).num_seqs == int(published)


def test_sequence_takes_the_published_memory() -> None:
    # the text model of Kimi-K2.5 has the latent cache of Kimi-K2: 61 layers of 576 elements
    geometry = geometry_from_config(model_config("kimi-k2"), where="kimi-k2")
    per_token = kv_bytes_per_token(geometry, dtype_bytes=1)
    assert per_token * PROMPT == 286_358_400  # "286 MB per handoff"
    assert per_token * SEQ / GIB == pytest.approx(0.30, abs=0.005)


def test_published_stall_follows_from_the_published_occupancy() -> None:
    num_decoding = 0.754 * 28.2 - 3.0
    mean_itl_ms = num_decoding / (1.58 / NUM_DECODE) / OUTPUT * 1000
    assert mean_itl_ms == pytest.approx(45.2, rel=0.01)


def test_larger_batch_finds_room_for_fewer_hand_offs() -> None:
    # published: 7.5 requests wait for their KV cache at 18, 3.0 at 24
    assert mean_staged(BS18, 256) > 1.5 * mean_staged(BS24, 256)
    assert mean_staged(BS24_MORE_MEMORY, 256) > mean_staged(BS18, 256)


def test_more_memory_serves_more_at_the_same_batch() -> None:
    assert requests_per_s(BS24_MORE_MEMORY) > 1.05 * requests_per_s(BS24)
    assert run(BS24_MORE_MEMORY)[2] == 0


def test_batch_past_what_the_pool_holds_serves_less() -> None:
    assert headroom_of(BS24).num_seqs > 0 > headroom_of(BS32).num_seqs
    assert requests_per_s(BS32) < 0.9 * requests_per_s(BS24)
    assert run(BS32)[2] > 4 * run(BS24)[2]


def test_the_same_batch_in_a_pool_that_holds_it_serves_more() -> None:
    assert requests_per_s(BS32_MORE_MEMORY) > 1.1 * requests_per_s(BS24_MORE_MEMORY)
    assert run(BS32_MORE_MEMORY)[2] == 0


def test_larger_batch_never_serves_less_while_nothing_is_computed_twice() -> None:
    rows = (Row(14, 28.2), Row(18, 28.2), Row(22, 28.2), BS24, BS32)
    rates = [requests_per_s(row, num_users=96) for row in rows]
    assert [run(row, 96)[2] for row in rows] == [0] * len(rows)
    assert rates == sorted(rates)
