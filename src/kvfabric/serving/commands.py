"""What a scheduler is told, and what it tells.

What every request needs has its constructor written out, see ``protocol.step``. None changes once
made.
"""

from dataclasses import dataclass
from typing import Final

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.serving.request import Goal


@dataclass(slots=True, init=False)
class AddRequest:
    """Take a request in; it may generate at most ``max_tokens`` tokens.

    The KV cache of the first ``num_external_tokens`` prompt tokens, whole blocks of them and not
    the whole prompt, is brought here from elsewhere before the rest is computed: the worker
    reserves the blocks of the prompt and waits for ``KvArrived``.
    """

    request_id: Final[int]
    num_prompt_tokens: Final[int]
    max_tokens: Final[int]
    goal: Final[Goal]
    keys: Final[BlockKeys]
    num_external_tokens: Final[int]

    def __init__(
        self,
        request_id: int,
        num_prompt_tokens: int,
        max_tokens: int,
        goal: Goal,
        keys: BlockKeys,
        num_external_tokens: int = 0,
    ) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.goal = goal
        self.keys = keys
        self.num_external_tokens = num_external_tokens


@dataclass(slots=True, init=False)
class KvArrived:
    """The KV cache of a request with reserved blocks is complete."""

    request_id: Final[int]

    def __init__(self, request_id: int) -> None:
        """Set the fields."""
        self.request_id = request_id


@dataclass(slots=True, init=False)
class ReleaseHeld:
    """The other side has the KV cache: give the held blocks back."""

    request_id: Final[int]

    def __init__(self, request_id: int) -> None:
        """Set the fields."""
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a request in whatever state it is; unknown ids are ignored (it may have just ended)."""

    request_id: int


Command = AddRequest | KvArrived | ReleaseHeld | Cancel


@dataclass(slots=True, init=False)
class PrefillStarted:
    """The first chunk of a prompt is planned; its cached tokens are there to be moved.

    Told when the step with the chunk is planned, again if the prompt starts over after a
    preemption. Only layer-wise hand-offs need it.
    """

    request_id: Final[int]
    num_cached_tokens: Final[int]

    def __init__(self, request_id: int, num_cached_tokens: int) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_cached_tokens = num_cached_tokens


@dataclass(slots=True, init=False)
class Prefilled:
    """The prompt of a request is computed (its first token sampled, unless it only prefills)."""

    request_id: Final[int]
    started_ns: Final[int]
    num_cached_tokens: Final[int]

    def __init__(self, request_id: int, started_ns: int, num_cached_tokens: int) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.started_ns = started_ns
        self.num_cached_tokens = num_cached_tokens


@dataclass(slots=True, init=False)
class FirstToken:
    """A request that was decoded from received KV produced its first token."""

    request_id: Final[int]

    def __init__(self, request_id: int) -> None:
        """Set the fields."""
        self.request_id = request_id


@dataclass(slots=True, init=False)
class Finished:
    """A request produced its last token and gave its blocks back."""

    request_id: Final[int]
    num_outputs: Final[int]
    num_preemptions: Final[int]

    def __init__(self, request_id: int, num_outputs: int, num_preemptions: int) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_outputs = num_outputs
        self.num_preemptions = num_preemptions


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancelled request is gone from the worker."""

    request_id: int


WorkerEvent = PrefillStarted | Prefilled | FirstToken | Finished | Cancelled


@dataclass(slots=True, init=False)
class WorkerSignal:
    """What a worker reports about itself: the only thing a router may know of it.

    Nothing in it changes while a decode batch runs undisturbed, so a report does not depend on how
    many iterations a driver runs at a time.

    Attributes:
        as_of_ns: instant of the first report that says so.
        num_queued_tokens: prompt tokens that wait for their prefill.
        num_requests: requests the worker knows.
        num_prompt_tokens: their prompt tokens, summed.
    """

    as_of_ns: Final[int]
    num_queued_tokens: Final[int]
    num_requests: Final[int]
    num_prompt_tokens: Final[int]

    def __init__(
        self,
        as_of_ns: int = 0,
        num_queued_tokens: int = 0,
        num_requests: int = 0,
        num_prompt_tokens: int = 0,
    ) -> None:
        """Set the fields."""
        self.as_of_ns = as_of_ns
        self.num_queued_tokens = num_queued_tokens
        self.num_requests = num_requests
        self.num_prompt_tokens = num_prompt_tokens
