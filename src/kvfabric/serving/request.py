"""A request as one worker's scheduler sees it."""

from enum import Enum

from kvfabric.kvcache.block_keys import BlockKeys


class Goal(Enum):
    """What a worker is to do with a request."""

    GENERATE = "generate"
    PREFILL = "prefill"  # compute the prompt, then hold its blocks until released
    DECODE = "decode"  # reserve blocks, wait for the KV cache of the prompt, then generate


class RequestState(Enum):
    """Where a request is inside one worker."""

    WAITING = "waiting"
    PREFILLING = "prefilling"  # some of its prompt is being computed or has been
    DECODING = "decoding"
    FINISHING = "finishing"  # its last token, by limit, is in a step that is out
    LEAVING = "leaving"  # cancelled, blocks kept until the steps that use them are over
    HELD = "held"  # prompt computed, blocks kept for the hand-off
    AWAITING_KV = "awaiting_kv"  # blocks reserved, bytes not there yet
    LOADED = "loaded"  # bytes arrived, not yet in a step
    GONE = "gone"


class Request:
    """Mutable state; never leaves the serving package.

    All counts stand where the scheduler has planned to: tokens of steps that are out are in them.
    Token positions ``[0, num_computed)`` are in the cache. While a request decodes, that number is
    ``join_context + (tick - join_tick)`` and is not stored, so that an iteration touches nobody.
    """

    __slots__ = (
        "first_scheduled_ns",
        "goal",
        "in_batch",
        "join_context",
        "join_tick",
        "keys",
        "max_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_external_tokens",
        "num_outputs",
        "num_preemptions",
        "num_prompt_tokens",
        "num_received_tokens",
        "request_id",
        "state",
    )

    def __init__(
        self, request_id: int, num_prompt_tokens: int, max_tokens: int, goal: Goal, keys: BlockKeys
    ) -> None:
        """Make a request of which nothing is computed."""
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.goal = goal
        self.keys = keys
        self.state = RequestState.WAITING
        self.num_external_tokens = 0  # of the prompt's front, to be brought here from elsewhere
        self.num_received_tokens = 0  # of the prompt's front, brought here and not findable yet
        self.num_computed = 0
        self.num_outputs = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.first_scheduled_ns: int | None = None
        self.join_tick = 0
        self.join_context = 0
        self.in_batch = False  # counted in the decode totals and the growth buckets

    @property
    def needs_kv(self) -> bool:
        """Return whether KV cache must be received before anything runs."""
        return self.num_external_tokens > 0 or self.goal is Goal.DECODE

    @property
    def num_tokens(self) -> int:
        """Return the tokens whose KV a prefill must compute: prompt and what was generated."""
        return self.num_prompt_tokens + self.num_outputs
