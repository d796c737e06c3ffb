"""What a scheduler is told, and what it tells.

What every request needs is a named tuple, which costs a third of a frozen dataclass.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.serving.request import Goal


class AddRequest(NamedTuple):
    """Take a request in; it may generate at most ``max_tokens`` tokens.

    The KV cache of the first ``num_external_tokens`` prompt tokens, whole blocks of them and not
    the whole prompt, is brought here from elsewhere before the rest is computed: the worker
    reserves the blocks of the prompt and waits for ``KvArrived``.
    """

    request_id: int
    num_prompt_tokens: int
    max_tokens: int
    goal: Goal
    keys: BlockKeys
    num_external_tokens: int = 0


class KvArrived(NamedTuple):
    """The KV cache of a request with reserved blocks is complete."""

    request_id: int


class ReleaseHeld(NamedTuple):
    """The other side has the KV cache: give the held blocks back."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a request in whatever state it is; unknown ids are ignored (it may have just ended)."""

    request_id: int


Command = AddRequest | KvArrived | ReleaseHeld | Cancel


class PrefillStarted(NamedTuple):
    """The first chunk of a prompt is planned; its cached tokens are there to be moved.

    Told when the step with the chunk is planned, again if the prompt starts over after a
    preemption. Only layer-wise hand-offs need it.
    """

    request_id: int
    num_cached_tokens: int


class Prefilled(NamedTuple):
    """The prompt of a request is computed (its first token sampled, unless it only prefills)."""

    request_id: int
    started_ns: int
    num_cached_tokens: int


class FirstToken(NamedTuple):
    """A request that was decoded from received KV produced its first token."""

    request_id: int


class Finished(NamedTuple):
    """A request produced its last token and gave its blocks back."""

    request_id: int
    num_outputs: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancelled request is gone from the worker."""

    request_id: int


WorkerEvent = PrefillStarted | Prefilled | FirstToken | Finished | Cancelled


class WorkerSignal(NamedTuple):
    """What a worker reports about itself: the only thing a router may know of it.

    Nothing in it changes while a decode batch runs undisturbed, so a report does not depend on how
    many iterations a driver runs at a time.

    Attributes:
        as_of_ns: instant of the first report that says so.
        num_queued_tokens: prompt tokens that wait for their prefill.
        num_requests: requests the worker knows.
        num_prompt_tokens: their prompt tokens, summed.
    """

    as_of_ns: int = 0
    num_queued_tokens: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
