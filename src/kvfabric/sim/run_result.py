"""What a run of the simulation gave."""

from dataclasses import dataclass, field

from kvfabric.protocol.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run gave: records by request id, and totals for checks and reports."""

    records: tuple[RequestRecord, ...]
    end_ns: int
    num_events: int
    num_iterations: int
    num_preemptions: int
    log_digest: str = field(default="")
