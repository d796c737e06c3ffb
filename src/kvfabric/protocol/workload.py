"""What a workload hands to a driver. The control core never sees these records (INV-9)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One request as the workload knows it, the true output length included.

    Attributes:
        request_id: unique, ascending in the order of the workload.
        arrival_ns: instant of arrival, counted from the start of the workload. For a follow-up turn
            (``after_request_id`` set) it is ignored: the turn arrives ``think_ns`` after that
            request has finished.
        num_prompt_tokens: prompt length, at least 1.
        num_output_tokens: true output length, at least 1; known to executors only.
        block_hashes: one id per ``Workload.hash_block_tokens`` tokens, in order from token 0; equal
            ids mean equal tokens in that block and in all before it. May reach past the prompt into
            the output. Empty: nothing of this request can be reused.
        after_request_id: the earlier turn of the same session, or None.
        think_ns: pause between that turn's end and this arrival.
        namespace: requests of different ones share no cached block (``namespace_id`` of a cache
            salt or an adapter); 0 for all without.
        max_tokens: most output tokens the client asks for; None leaves it to the run. A benchmark
            of fixed lengths asks for exactly ``num_output_tokens``, and the control knows it.
    """

    request_id: int
    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    block_hashes: tuple[int, ...] = ()
    after_request_id: int | None = None
    think_ns: int = 0
    max_tokens: int | None = None
    namespace: int = 0


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row of a trace that cannot be used as it stands."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of id, with what was left out on the way and why.

    Attributes:
        name: file name or generator summary.
        requests: ascending ids; first turns in ascending arrival order.
        hash_block_tokens: tokens per entry of ``block_hashes``; 0 when no request has hashes.
        num_rows: data rows read; ``len(requests) + len(bad_rows) == num_rows``.
        bad_rows: rows skipped, in order of line.
        num_users: clients of a closed loop, who each wait for an answer before they ask again; None
            for an open loop.
    """

    name: str
    requests: tuple[RequestSpec, ...]
    hash_block_tokens: int
    num_rows: int
    bad_rows: tuple[BadRow, ...] = ()
    num_users: int | None = None
