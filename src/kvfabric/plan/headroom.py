"""Room for hand-offs in flight in the KV pool of a decode worker.

A hand-off reserves the decode blocks of its whole prompt before the first byte moves, out of the
same pool as the running batch. A full batch leaves room for this many hand-offs:

    headroom = floor(pool tokens / tokens of one sequence) - max_num_seqs

Source: published: ai-dynamo/aiconfigurator pull request 1380, comments of 2026-08-09
(vLLM 0.22, NixlConnector).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.metrics.percentiles import rounded_div
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.config import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeHeadroom:
    """How many sequences a decode worker's pool holds beyond its largest batch.

    Attributes:
        pool_tokens: tokens of all blocks of the pool.
        seq_tokens: prompt and output of one sequence.
        max_num_seqs: most sequences that decode at once.
    """

    pool_tokens: int
    seq_tokens: int
    max_num_seqs: int

    def __post_init__(self) -> None:
        """Refuse sequences and batches below one."""
        for name in ("seq_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"read {getattr(self, name)}", where=name, hint="Write 1 or more")

    @property
    def num_fitting(self) -> int:
        """Return the whole sequences that the pool holds."""
        return self.pool_tokens // self.seq_tokens

    @property
    def num_seqs(self) -> int:
        """Return the hand-offs for which a full batch leaves room; negative when it does not fit.

        Then the pool, not ``max_num_seqs``, bounds the batch: sequences grow until no block is
        free and the youngest is preempted, and its whole prompt is computed again by the decode
        worker while the others wait.
        """
        return self.num_fitting - self.max_num_seqs

    def sentence(self) -> str:
        """Return what follows from it, in words."""
        holds = (
            f"A decode worker's KV pool holds {self.num_fitting:,} requests of"
            f" {self.seq_tokens:,} tokens"
        )
        if self.num_seqs > 0:
            return (
                f"{holds} and max_num_seqs is {self.max_num_seqs:,}: with a full batch at most"
                f" {self.num_seqs:,} hand-offs can be in flight to it."
            )
        return (
            f"{holds}; max_num_seqs {self.max_num_seqs:,} leaves no room for hand-offs in flight,"
            " which reserve their blocks before they start: the pool fills up, running requests"
            " are preempted and computed again."
            f" Write a max_num_seqs below {max(self.num_fitting, 2):,}, or give the pool more"
            " memory."
        )


def decode_headroom(
    scheduler: SchedulerConfig, requests: Sequence[RequestSpec]
) -> DecodeHeadroom | None:
    """Return the headroom of a decode worker for requests of mean length; None without requests."""
    if not requests:
        return None
    total = sum(spec.num_prompt_tokens + spec.num_output_tokens for spec in requests)
    return DecodeHeadroom(
        pool_tokens=(scheduler.num_blocks - 1) * scheduler.block_size,
        seq_tokens=max(1, rounded_div(total, len(requests))),
        max_num_seqs=scheduler.max_num_seqs,
    )
