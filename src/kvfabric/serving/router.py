"""Which worker takes a request, decided from reports that may be stale."""

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum

from kvfabric.serving.commands import WorkerSignal


class RoutingPolicy(Enum):
    """How a prefill (or aggregated) worker is chosen."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    PREFIX_AWARE = "prefix_aware"


class Router:
    """Chooses workers from their last reports plus what was sent to them since.

    A router never asks a worker anything; it sees the ``WorkerSignal`` a driver passes in from time
    to time (every 50 ms by default) and remembers its own choices made after that report. For
    ``prefix_aware`` it keeps an index of the prefixes it has sent where, the latest
    ``max_index_entries`` per worker; the worker may have evicted some of them by now. The cost of a
    worker is the tokens in its queue plus those of the request it would have to compute.
    """

    __slots__ = (
        "_decode_sent",
        "_decode_signals",
        "_index",
        "_max_index_entries",
        "_next",
        "_policy",
        "_prefill_sent",
        "_prefill_signals",
    )

    def __init__(
        self,
        policy: RoutingPolicy,
        *,
        num_prefill: int,
        num_decode: int,
        max_index_entries: int = 100_000,
    ) -> None:
        """Make a router over ``num_prefill`` workers that compute prompts and their receivers."""
        self._policy = policy
        self._next = 0
        self._max_index_entries = max_index_entries
        self._prefill_signals = [WorkerSignal()] * num_prefill
        self._decode_signals = [WorkerSignal()] * num_decode
        self._prefill_sent = [0] * num_prefill  # tokens since the last report
        self._decode_sent = [0] * num_decode
        self._index: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_prefill)]

    def report(self, prefill: Sequence[WorkerSignal], decode: Sequence[WorkerSignal]) -> None:
        """Take in fresh reports of all workers."""
        self._prefill_signals, self._decode_signals = list(prefill), list(decode)
        self._prefill_sent = [0] * len(prefill)
        self._decode_sent = [0] * len(decode)

    def choose_prefill(
        self, num_prompt_tokens: int, hashes: tuple[int, ...], hash_block_tokens: int
    ) -> int:
        """Return the index of the worker that computes a prompt; ties go to the lowest index."""
        match self._policy:
            case RoutingPolicy.ROUND_ROBIN:
                chosen = self._next
                self._next = (chosen + 1) % len(self._prefill_signals)
                return chosen
            case RoutingPolicy.LEAST_LOADED:
                loads = self._prefill_loads()
                chosen = loads.index(min(loads))
                self._prefill_sent[chosen] += num_prompt_tokens
                return chosen
            case RoutingPolicy.PREFIX_AWARE:
                return self._choose_by_prefix(num_prompt_tokens, hashes, hash_block_tokens)

    def _prefill_loads(self) -> list[int]:
        return [
            signal.num_queued_tokens + sent
            for signal, sent in zip(self._prefill_signals, self._prefill_sent, strict=True)
        ]

    def _choose_by_prefix(
        self, num_prompt_tokens: int, hashes: tuple[int, ...], hash_block_tokens: int
    ) -> int:
        costs = self._prefill_loads()
        new_tokens = [num_prompt_tokens] * len(costs)
        for worker, index in enumerate(self._index):
            depth = 0
            for key in hashes:
                if key not in index:
                    break
                depth += 1
            new_tokens[worker] -= min(depth * hash_block_tokens, num_prompt_tokens - 1)
        totals = [queued + new for queued, new in zip(costs, new_tokens, strict=True)]
        chosen = totals.index(min(totals))
        self._prefill_sent[chosen] += new_tokens[chosen]
        self._remember(chosen, hashes)
        return chosen

    def _remember(self, worker: int, hashes: tuple[int, ...]) -> None:
        """Note a prefix as present, its head last, so that it outlives its tail."""
        index = self._index[worker]
        for key in reversed(hashes):
            index[key] = None
            index.move_to_end(key)
        while len(index) > self._max_index_entries:
            index.popitem(last=False)

    def choose_decode(self, num_prompt_tokens: int) -> int:
        """Return the decode worker with the fewest tokens in its requests, lowest index first."""
        loads = [
            signal.num_prompt_tokens + sent
            for signal, sent in zip(self._decode_signals, self._decode_sent, strict=True)
        ]
        chosen = loads.index(min(loads))
        self._decode_sent[chosen] += num_prompt_tokens
        return chosen
