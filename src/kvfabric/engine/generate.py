"""Prompts through a running cluster one after the other, and what the KV cache did for each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic_ns

from kvfabric.engine.block_hashes import block_hashes
from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import (
    EngineStep,
    Executor,
    FinishReason,
    NewRequest,
    Sampling,
    ScheduledTokens,
)
from kvfabric.engine.executor_spec import ExecutorSpec, make_executor
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.errors import KvfabricError
from kvfabric.metrics.latency import tpot_ns, ttft_ns
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One prompt's output, and what it took.

    Attributes:
        token_ids: of the output.
        finish: why it ended.
        num_prompt_tokens: of the prompt.
        num_cached_tokens: of those, found in the prefix cache.
        num_blocks: KV blocks that hold prompt and output; 0 without a cache.
        block_bytes: KV bytes of one block.
        ttft_ns: from the request to the first token.
        tpot_ns: mean time per token after the first; None for one token.
        num_computed_tokens: whose keys and values were computed, again and again without a cache.
        handoff_bytes: moved from the prefill to the decode worker.
        handoff_ns: how long that took, as the control saw it.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_blocks: int = 0
    block_bytes: int = 0
    ttft_ns: int
    tpot_ns: int | None
    num_computed_tokens: int
    handoff_bytes: int = 0
    handoff_ns: int = 0

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of the blocks that hold prompt and output."""
        return self.num_blocks * self.block_bytes


class _Collector:
    """Takes tokens of one request at a time, and lets its client wait for the end."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.ends: SimpleQueue[tuple[RequestRecord, FinishReason | None]] = SimpleQueue()

    def on_token(self, request_id: int, token_id: int) -> None:
        del request_id
        self.token_ids.append(token_id)

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        self.ends.put((record, finish))


class Generator:
    """A running cluster that answers one prompt after the other."""

    def __init__(
        self, cluster: LocalCluster | ProcessCluster, collector: _Collector, block_size: int
    ) -> None:
        """Use a cluster whose output goes to the collector."""
        self._cluster, self._collector, self._block_size = cluster, collector, block_size
        self._num_requests = 0

    def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generated:
        """Return what follows a prompt.

        Raises:
            ConfigError: the model cannot take the prompt and so much output.
            KvfabricError: the request failed, with what the workers said.
        """
        if self._cluster.limits is not None:
            self._cluster.limits.check(prompt_ids, sampling.max_tokens)
        collector, driver = self._collector, self._cluster.loop.driver
        collector.token_ids = []
        moved_bytes, transfer_ns = driver.moved_bytes, driver.transfer_ns
        hashes = block_hashes(prompt_ids, self._block_size)
        request = GenerateRequest(
            self._num_requests, tuple(prompt_ids), sampling, hashes, hash_key=b""
        )
        self._num_requests += 1
        self._cluster.loop.submit(request)
        record, finish = self._wait()
        first_ns = ttft_ns(record)
        if record.outcome is not Outcome.FINISHED or finish is None or first_ns is None:
            said = "; ".join(self._cluster.loop.failures) or "it does not fit"
            raise KvfabricError(f"the request was {record.outcome.value}: {said}")
        num_cached = record.num_prompt_tokens + record.num_output_tokens - 1  # the last has no KV
        return Generated(
            token_ids=tuple(collector.token_ids),
            finish=finish,
            num_prompt_tokens=record.num_prompt_tokens,
            num_cached_tokens=record.num_cached_tokens,
            num_blocks=ceil_div(num_cached, self._block_size),
            block_bytes=self._cluster.block_bytes,
            ttft_ns=first_ns,
            tpot_ns=tpot_ns(record),
            num_computed_tokens=num_cached - record.num_cached_tokens,
            handoff_bytes=driver.moved_bytes - moved_bytes,
            handoff_ns=driver.transfer_ns - transfer_ns,
        )

    def _wait(self) -> tuple[RequestRecord, FinishReason | None]:
        while True:
            try:
                return self._collector.ends.get(timeout=0.5)
            except Empty:
                self._cluster.raise_if_failed()


@contextmanager
def generator(
    settings: ClusterSettings, executor: ExecutorSpec, *, log: DecisionLog | None = None
) -> Iterator[Generator]:
    """Start a cluster: in this process with a single worker, else a process per worker.

    Args:
        settings: of the cluster.
        executor: of every worker.
        log: keeps what happens.

    Raises:
        ConfigError: the model is not there or cannot be run.
    """
    collector = _Collector()
    cluster: LocalCluster | ProcessCluster
    if settings.num_workers > 1:
        cluster = ProcessCluster(settings, executor, collector, log=log)
    else:
        made = make_executor(executor)
        cluster = LocalCluster(
            settings,
            [made.executor],
            collector,
            block_bytes=made.layout.block_bytes,
            num_layers=made.layout.num_layers,
            limits=made.limits,
            log=log,
        )
    with cluster:
        yield Generator(cluster, collector, settings.block_size)


def generate_without_cache(
    executor: Executor, prompt_ids: Sequence[int], sampling: Sampling, block_size: int
) -> Generated:
    """Return the same output, every token of it computed from the first token on.

    The executor must have blocks for prompt and output. What an older step left in them is not
    read: each step computes the keys and values of all tokens again.
    """
    num_prompt = len(prompt_ids)
    num_blocks = ceil_div(num_prompt + sampling.max_tokens, block_size)
    start_ns = monotonic_ns()
    instants_ns: list[int] = []
    token_ids: list[int] = []
    num_computed = 0
    finish: FinishReason | None = None
    new: tuple[NewRequest, ...] = (NewRequest(0, tuple(prompt_ids), sampling),)
    while finish is None:
        num_tokens = num_prompt + len(token_ids)
        blocks = tuple(range(1, num_blocks + 1))
        share = ScheduledTokens(
            0, first=0, num_tokens=num_tokens, samples=True, table_start=0, new_blocks=blocks
        )
        (token,) = executor.run(EngineStep(new, (share,))).tokens
        new, finish = (), token.finish
        token_ids.append(token.token_id)
        instants_ns.append(monotonic_ns())
        num_computed += num_tokens
    executor.run(EngineStep((), (), (0,)))
    num_later = len(token_ids) - 1
    return Generated(
        token_ids=tuple(token_ids),
        finish=finish,
        num_prompt_tokens=num_prompt,
        ttft_ns=instants_ns[0] - start_ns,
        tpot_ns=ceil_div(instants_ns[-1] - instants_ns[0], num_later) if num_later else None,
        num_computed_tokens=num_computed,
    )
