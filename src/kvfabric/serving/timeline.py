"""What the control remembers of a request in flight, to write its record at the end."""

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.commands import AddRequest
from kvfabric.serving.request import Goal

NO_WORKER = -1
_NO_KEYS = BlockKeys(0, (), 1, 0)


class Timeline:
    """Instants and counts of one request.

    Attributes:
        worker: where it is now; during a hand-off the destination.
        goal: what that worker, or before a hand-off the source, is to do with it.
        is_leaving: it starts anew as soon as ``worker`` has let go of it.
    """

    __slots__ = (
        "arrival_ns",
        "fetched_ns",
        "finished_ns",
        "first_token_ns",
        "goal",
        "is_leaving",
        "keys",
        "max_tokens",
        "num_cached_tokens",
        "num_fetched_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_restarts",
        "prefill_end_ns",
        "prefill_start_ns",
        "queued_ns",
        "request_id",
        "reserved_ns",
        "routed_ns",
        "transfer_bytes",
        "transferred_ns",
        "worker",
    )

    def __init__(self, *, request_id: int, arrival_ns: int, num_prompt_tokens: int) -> None:
        """Start with a request that is nowhere."""
        self.request_id = request_id
        self.arrival_ns = arrival_ns
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = 0
        self.keys = _NO_KEYS
        self.worker = NO_WORKER
        self.goal = Goal.GENERATE
        self.is_leaving = False
        self.routed_ns: int | None = None
        self.queued_ns: int | None = None
        self.prefill_start_ns: int | None = None
        self.prefill_end_ns: int | None = None
        self.reserved_ns: int | None = None
        self.transferred_ns: int | None = None
        self.first_token_ns: int | None = None
        self.finished_ns: int | None = None
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.transfer_bytes = 0
        self.num_restarts = 0
        self.num_fetched_tokens = 0
        self.fetched_ns: int | None = None

    def add_request(self, goal: Goal, *, num_external_tokens: int = 0) -> AddRequest:
        """Return the command that gives the request to a worker."""
        return AddRequest(
            self.request_id,
            self.num_prompt_tokens,
            self.max_tokens,
            goal,
            self.keys,
            num_external_tokens,
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
