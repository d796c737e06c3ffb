"""What the control remembers of a request in flight, to write its record at the end."""

from dataclasses import dataclass

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.commands import AddRequest
from kvfabric.serving.request import Goal

NO_WORKER = -1
_NO_KEYS = BlockKeys(0, (), 1, 0)


@dataclass(slots=True, eq=False, kw_only=True)
class Timeline:
    """Instants and counts of one request.

    Attributes:
        worker: where it is now; during a hand-off the destination.
        goal: what that worker, or before a hand-off the source, is to do with it.
        is_leaving: it starts anew as soon as ``worker`` has let go of it.
    """

    request_id: int
    arrival_ns: int
    num_prompt_tokens: int
    max_tokens: int = 0
    keys: BlockKeys = _NO_KEYS
    worker: int = NO_WORKER
    goal: Goal = Goal.GENERATE
    is_leaving: bool = False
    routed_ns: int | None = None
    queued_ns: int | None = None
    prefill_start_ns: int | None = None
    prefill_end_ns: int | None = None
    reserved_ns: int | None = None
    transferred_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    transfer_bytes: int = 0
    num_restarts: int = 0
    num_fetched_tokens: int = 0
    fetched_ns: int | None = None

    def add_request(self, goal: Goal, *, num_external_tokens: int = 0) -> AddRequest:
        """Return the command that gives the request to a worker."""
        return AddRequest(
            request_id=self.request_id,
            num_prompt_tokens=self.num_prompt_tokens,
            max_tokens=self.max_tokens,
            goal=goal,
            keys=self.keys,
            num_external_tokens=num_external_tokens,
        )

    def forget_attempt(self) -> None:
        """Clear the instants of an attempt that failed, unless the client has its first token."""
        if self.first_token_ns is not None:
            return
        self.routed_ns = self.queued_ns = self.prefill_start_ns = self.prefill_end_ns = None
        self.reserved_ns = self.transferred_ns = self.fetched_ns = None
        self.num_cached_tokens = self.num_fetched_tokens = 0

    def record(self, outcome: Outcome) -> RequestRecord:
        """Return the record of the request as it stands."""
        return RequestRecord(
            request_id=self.request_id,
            outcome=outcome,
            arrival_ns=self.arrival_ns,
            routed_ns=self.routed_ns,
            queued_ns=self.queued_ns,
            prefill_start_ns=self.prefill_start_ns,
            prefill_end_ns=self.prefill_end_ns,
            reserved_ns=self.reserved_ns,
            transferred_ns=self.transferred_ns,
            first_token_ns=self.first_token_ns,
            finished_ns=self.finished_ns,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            transfer_bytes=self.transfer_bytes,
            num_restarts=self.num_restarts,
            num_fetched_tokens=self.num_fetched_tokens,
            fetched_ns=self.fetched_ns,
        )
