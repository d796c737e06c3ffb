"""Which worker takes a request, decided from reports that may be stale."""

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from operator import add

from kvfabric.serving.decode_choice import DecodeChoice
from kvfabric.serving.kv_directory import set_bits
from kvfabric.serving.least_cost import NEVER, next_least
from kvfabric.serving.signals import SignalBoard
from kvfabric.serving.timeline import NO_WORKER

SIGNAL_INTERVAL_NS = 50_000_000


class RoutingPolicy(Enum):
    """How a prefill (or aggregated) worker is chosen."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    PREFIX_AWARE = "prefix_aware"


class Router:
    """Chooses workers from their last reports plus what was sent to them since.

    A router never asks a worker anything: it sees reports as of the last multiple of
    ``signal_interval_ns`` and remembers its own choices made after that. For ``prefix_aware`` it
    keeps an index of the prefixes it has sent where, the latest ``max_index_entries`` per worker;
    the worker may have evicted some of them by now. A prefix draws a request only if it is more
    than half of the prompt: or else a head that all share, such as a system prompt, would draw
    everything to the worker that had it first. To exploit a cached prefix or else to explore is
    the idea of Preble (arXiv 2407.00023); the half is our choice. The cost of a worker is the
    tokens in its queue plus those of the request it would have to compute. Ties go in turn, so that
    a slow stream uses every worker and its cache. A lost worker is never chosen; of one that has
    joined again nothing is remembered.

    Attributes:
        observe: ``(worker, signal, now_ns)``: take in that a worker has changed; it counts once the
            interval is over.
    """

    __slots__ = (
        "_board",
        "_decode",
        "_holders",
        "_index",
        "_lost",
        "_max_index_entries",
        "_next",
        "_num_decode",
        "_num_prefill",
        "_policy",
        "_sent",
        "_sent_in",
        "observe",
    )

    def __init__(
        self,
        policy: RoutingPolicy,
        *,
        num_prefill: int,
        num_decode: int,
        signal_interval_ns: int = SIGNAL_INTERVAL_NS,
        max_index_entries: int = 100_000,
        decode: DecodeChoice | None = None,
    ) -> None:
        """Make a router over ``num_prefill`` workers that compute prompts, then their receivers.

        ``decode`` chooses these, by default the least loaded.
        """
        self._policy = policy
        self._num_prefill = num_prefill
        self._num_decode = num_decode
        self._lost: set[int] = set()
        self._next = num_prefill - 1  # chosen last; the turn begins after it
        self._decode = DecodeChoice() if decode is None else decode
        self._max_index_entries = max_index_entries
        self._board = SignalBoard(num_prefill + num_decode, signal_interval_ns)
        self.observe = self._board.put
        self._sent = [0] * (num_prefill + num_decode)  # tokens sent in the interval below
        self._sent_in = -1
        self._holders: dict[int, int] = {}  # workers whose index has a key, as a bit mask
        self._index: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_prefill)]

    @property
    def signal_interval_ns(self) -> int:
        """Return the time between two looks at the reports."""
        return self._board.interval_ns

    # ------------------------------------------------------------------ lost workers

    @property
    def has_prefill(self) -> bool:
        """Return whether a worker that computes prompts is alive."""
        return not self._lost or any(w not in self._lost for w in range(self._num_prefill))

    @property
    def has_decode(self) -> bool:
        """Return whether a decode worker is alive."""
        first, end = self._num_prefill, self._num_prefill + self._num_decode
        return not self._lost or any(w not in self._lost for w in range(first, end))

    def is_lost(self, worker: int) -> bool:
        """Return whether a worker is dead."""
        return worker in self._lost

    def lose(self, worker: int) -> None:
        """Choose a worker no more, and forget which prefixes were sent there."""
        assert worker not in self._lost, f"worker {worker} is lost already"
        self._lost.add(worker)
        if worker < self._num_prefill:
            for key in self._index[worker]:
                self._forget(key, 1 << worker)
            self._index[worker].clear()

    def join(self, worker: int) -> None:
        """Choose a worker again; it is idle and caches nothing."""
        self._lost.remove(worker)
        self._board.reset(worker)
        self._sent[worker] = 0

    # ------------------------------------------------------------------ choosing

    def choose_prefill(
        self,
        num_prompt_tokens: int,
        hashes: tuple[int, ...],
        hash_block_tokens: int,
        now_ns: int,
    ) -> int:
        """Return the id of the worker that computes a prompt; one must be alive."""
        match self._policy:
            case RoutingPolicy.ROUND_ROBIN:
                chosen = self._next_in_turn()
            case RoutingPolicy.LEAST_LOADED:
                chosen = self._send([num_prompt_tokens] * self._num_prefill, now_ns)
            case RoutingPolicy.PREFIX_AWARE:
                new_tokens = self._new_tokens(num_prompt_tokens, hashes, hash_block_tokens)
                chosen = self._send(new_tokens, now_ns)
                self._remember(chosen, hashes)
        return chosen

    @property
    def last_prefill(self) -> int:
        """Return the prefill worker that was chosen last, after which ties go in turn."""
        return self._next

    def queued_tokens(self, now_ns: int) -> list[int]:
        """Return the prompt tokens that wait at each prefill worker; at lost ones, without end."""
        self._forget_sent(now_ns)
        queued = list(map(add, self._board.queued_tokens(now_ns), self._sent))
        del queued[self._num_prefill :]
        self._exclude_lost(queued, 0)
        return queued

    def send(self, worker: int, num_tokens: int) -> None:
        """Count tokens as sent to a prefill worker that was chosen from ``queued_tokens``."""
        assert worker not in self._lost, "no live worker to choose"
        self._next = worker
        self._sent[worker] += num_tokens

    def _next_in_turn(self) -> int:
        assert self.has_prefill, "no live worker to compute a prompt"
        self._next = (self._next + 1) % self._num_prefill
        while self._next in self._lost:
            self._next = (self._next + 1) % self._num_prefill
        return self._next

    def _send(self, new_tokens: list[int], now_ns: int) -> int:
        """Choose the prefill worker with the least to do, this request included."""
        self._forget_sent(now_ns)
        queued, sent = self._board.queued_tokens(now_ns), self._sent
        costs = [queued[w] + sent[w] + new for w, new in enumerate(new_tokens)]
        self._exclude_lost(costs, 0)
        chosen = self._next = next_least(costs, self._next)
        self._sent[chosen] += new_tokens[chosen]
        return chosen

    def _exclude_lost(self, costs: list[int], first_worker: int) -> None:
        """Make the lost workers the last choice, in place; costs start at ``first_worker``."""
        for worker in self._lost:
            if 0 <= worker - first_worker < len(costs):
                costs[worker - first_worker] = NEVER

    def _forget_sent(self, now_ns: int) -> None:
        """Forget what was sent before the visible reports were made: it is in them."""
        interval = self._board.interval_of(now_ns)
        if interval != self._sent_in:
            self._sent = [0] * len(self._sent)
            self._sent_in = interval

    def _new_tokens(
        self, num_prompt_tokens: int, hashes: tuple[int, ...], hash_block_tokens: int
    ) -> list[int]:
        """Return the prompt tokens each worker would have to compute, by the router's index."""
        new_tokens = [num_prompt_tokens] * self._num_prefill
        alive, depth = (1 << self._num_prefill) - 1, 0
        for key in hashes:
            left = alive & self._holders.get(key, 0)
            if left != alive:
                _take_hit_off(new_tokens, alive & ~left, depth * hash_block_tokens)
                alive = left
                if not alive:
                    return new_tokens
            depth += 1
        _take_hit_off(new_tokens, alive, depth * hash_block_tokens)
        return new_tokens

    def _remember(self, worker: int, hashes: tuple[int, ...]) -> None:
        """Note a prefix as present, its head last, so that it outlives its tail."""
        index, holders, bit = self._index[worker], self._holders, 1 << worker
        for key in reversed(hashes):
            if key in index:
                index.move_to_end(key)
            else:
                index[key] = None
                holders[key] = holders.get(key, 0) | bit
        while len(index) > self._max_index_entries:
            self._forget(index.popitem(last=False)[0], bit)

    def _forget(self, key: int, bit: int) -> None:
        left = self._holders[key] & ~bit
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def choose_decode(
        self,
        num_prompt_tokens: int,
        now_ns: int,
        source: int = NO_WORKER,
        num_to: Sequence[int] = (),
    ) -> int:
        """Return the id of the decode worker that takes a prompt; one must be alive.

        Args:
            num_prompt_tokens: of the prompt.
            now_ns: the instant.
            source: the prefill worker that sends, if it is chosen already.
            num_to: hand-offs under way to every worker, by id; ``topology_aware`` needs them.
        """
        self._forget_sent(now_ns)
        prompts, sent, first = self._board.prompt_tokens(now_ns), self._sent, self._num_prefill
        loads = [prompts[w] + sent[w] for w in range(first, len(sent))]
        self._exclude_lost(loads, first)
        chosen = first + self._decode.choose(num_prompt_tokens, loads, source, num_to, first)
        self._sent[chosen] += num_prompt_tokens
        return chosen


def _take_hit_off(new_tokens: list[int], workers: int, num_hit_tokens: int) -> None:
    """Take a hit off what these workers would compute, in place, if it is worth going there for."""
    num_prompt_tokens = max(new_tokens)
    if 2 * num_hit_tokens <= num_prompt_tokens:
        return
    for worker in set_bits(workers):
        new_tokens[worker] -= min(num_hit_tokens, new_tokens[worker] - 1)
