"""What one request went through: the only input of the latency metrics, in both worlds."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REJECTED = "rejected"  # can never run: its prompt leaves no room for a token
    ABORTED = "aborted"  # cancelled by its client, or its hand-off passed its deadline
    FAILED = "failed"  # its worker died too often, or no live worker was left for it
    UNFINISHED = "unfinished"


@dataclass(slots=True, init=False)
class RequestRecord:
    """Instants in ns; None where the request never got there.

    ``arrival <= routed <= prefill_start <= prefill_end <= transferred <= first_token <= finished``
    always. ``reserved``, when the decode worker has the blocks of the whole prompt, lies

    - in ``[prefill_end, transferred]`` where decode is asked after a whole-prompt prefill,
    - in ``[prefill_start, transferred]`` where KV is streamed layer by layer behind the prefill,
    - in ``[routed, prefill_start]`` where decode is asked first.

    ``transferred`` is the acknowledgement: prefill over and every byte arrived. An aggregated
    worker, and a decode worker that recomputes a prompt whose hand-off expired, sets ``reserved``,
    ``transferred`` and ``first_token`` to ``prefill_end``. Otherwise the first token is the one of
    the first decode step.

    After a restart the instants from ``routed`` to ``transferred`` and the cached tokens are those
    of the attempt that gave the client its first token (the last one, if none did): what earlier
    attempts took lies between ``arrival`` and ``routed``. Bytes and preemptions count all attempts;
    the output tokens are those of the last.

    ``queued`` is when the first worker's engine reads the request, between two steps; what engines
    publish as TTFT starts there. It lies in ``[routed, prefill_start]``.

    ``fetched`` is when the last byte of a prefix brought from host memory or storage was there, in
    ``[queued, prefill_end]``, and before ``prefill_start`` unless it comes layer by layer; None
    without a fetch. ``num_cached_tokens`` counts the ``num_fetched_tokens`` as well.
    """

    request_id: Final[int]
    outcome: Final[Outcome]
    arrival_ns: Final[int]
    routed_ns: Final[int | None]
    queued_ns: Final[int | None]
    prefill_start_ns: Final[int | None]
    prefill_end_ns: Final[int | None]
    reserved_ns: Final[int | None]
    transferred_ns: Final[int | None]
    first_token_ns: Final[int | None]
    finished_ns: Final[int | None]
    num_prompt_tokens: Final[int]
    num_output_tokens: Final[int]
    num_cached_tokens: Final[int]
    num_preemptions: Final[int]
    transfer_bytes: Final[int]
    num_restarts: Final[int]
    num_fetched_tokens: Final[int]
    fetched_ns: Final[int | None]

    def __init__(
        self,
        *,
        request_id: int,
        outcome: Outcome,
        arrival_ns: int,
        routed_ns: int | None = None,
        queued_ns: int | None = None,
        prefill_start_ns: int | None = None,
        prefill_end_ns: int | None = None,
        reserved_ns: int | None = None,
        transferred_ns: int | None = None,
        first_token_ns: int | None = None,
        finished_ns: int | None = None,
        num_prompt_tokens: int,
        num_output_tokens: int,
        num_cached_tokens: int = 0,
        num_preemptions: int = 0,
        transfer_bytes: int = 0,
        num_restarts: int = 0,
        num_fetched_tokens: int = 0,
        fetched_ns: int | None = None,
    ) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.outcome = outcome
        self.arrival_ns = arrival_ns
        self.routed_ns = routed_ns
        self.queued_ns = queued_ns
        self.prefill_start_ns = prefill_start_ns
        self.prefill_end_ns = prefill_end_ns
        self.reserved_ns = reserved_ns
        self.transferred_ns = transferred_ns
        self.first_token_ns = first_token_ns
        self.finished_ns = finished_ns
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.num_cached_tokens = num_cached_tokens
        self.num_preemptions = num_preemptions
        self.transfer_bytes = transfer_bytes
        self.num_restarts = num_restarts
        self.num_fetched_tokens = num_fetched_tokens
        self.fetched_ns = fetched_ns
