"""What one request went through: the only input of the latency metrics, in both worlds."""

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REJECTED = "rejected"
    ABORTED = "aborted"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Instants in ns, in this order; None where the request never got there.

    ``arrival <= routed <= prefill_start <= prefill_end <= reserved <= transferred <= first_token
    <= finished``. An aggregated worker sets ``reserved`` and ``transferred`` to ``prefill_end``,
    and ``first_token`` equals ``prefill_end``. Disaggregated, the first token is the one of the
    first decode step.
    """

    request_id: int
    outcome: Outcome
    arrival_ns: int
    routed_ns: int | None = None
    prefill_start_ns: int | None = None
    prefill_end_ns: int | None = None
    reserved_ns: int | None = None
    transferred_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    transfer_bytes: int = 0
