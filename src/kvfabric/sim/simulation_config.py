"""The world around control and GPUs: its delays, and which steps belong together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """Delays that belong to the world rather than to a decision.

    Attributes:
        transfer_setup_ns: from the decision to move bytes until the first byte moves.
        max_tokens: most output tokens a client asks for where its request does not say (the true
            length stays unknown to control).
        async_scheduling: plan the next step while one runs, as vLLM does by default.
        lockstep: groups of worker ids whose steps begin and end together, as data-parallel ranks
            that share experts do: the longest step counts, a rank without work waits. They run
            step by step.
    """

    transfer_setup_ns: int = 0
    max_tokens: int = 1 << 31
    async_scheduling: bool = False
    lockstep: tuple[tuple[int, ...], ...] = ()
