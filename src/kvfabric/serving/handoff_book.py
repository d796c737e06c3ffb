"""All hand-offs under way: what they move, and until when the source keeps its blocks for them."""

import heapq
from collections.abc import Callable, Sequence
from functools import partial

from kvfabric.kvcache.resharding import RankBytes
from kvfabric.protocol.transfer import KvPiece, RankTransfer, TransferPlan
from kvfabric.serving.coordinator_config import CoordinatorConfig, HandoffMode
from kvfabric.serving.handoff import Handoff, HandoffState
from kvfabric.serving.streaming import LayerStream

# A named tuple from a tuple: two thirds of its constructor's time, and a hand-off has eight.
_PART: Callable[[tuple[int, int, int]], RankTransfer] = partial(tuple.__new__, RankTransfer)


class HandoffBook:
    """Hand-offs by request, transfers under way by id, leases by their end.

    Invariants:
        I1. a hand-off in the book is neither acknowledged nor cancelled (INV-10).
        I2. a transfer under way belongs to one hand-off of the book, whose destination has blocks.
        I3. blocks of a finished prefill are held under a lease that is in the heap.
        I4. a hand-off that has lost a transfer is over when its prefill is.
        I5. ``num_to`` counts the hand-offs of the book by destination.

    Attributes:
        by_request: hand-offs by request id.
        num_to: hand-offs under way to each worker, from when it is asked for blocks.
    """

    __slots__ = (
        "_config",
        "_gpus",
        "_leases",
        "_moving",
        "_num_sent",
        "_num_transfers",
        "_pairs",
        "_sizes",
        "by_request",
        "num_to",
    )

    def __init__(self, config: CoordinatorConfig) -> None:
        """Start with no hand-off."""
        self._config = config
        self._pairs = config.rank_pairs
        if self._pairs is None:
            self._pairs = tuple((rank, rank) for rank in range(len(config.worker_gpus[0])))
        self._gpus: dict[tuple[int, int], tuple[list[int], list[int]]] = {}  # by pair of workers
        self._leases: list[tuple[int, int]] = []  # (end, request id), some outdated
        self._moving: dict[int, Handoff] = {}
        self._num_transfers = 0
        self._sizes = config.rank_bytes_in_turn or (config.rank_bytes,)
        self._num_sent = [0] * len(config.worker_gpus)  # hand-offs that each source has begun
        self.by_request: dict[int, Handoff] = {}
        self.num_to = [0] * len(config.worker_gpus)

    def open(self, request_id: int, num_tokens: int, source: int, destination: int) -> Handoff:
        """Add a hand-off whose destination is being asked for blocks."""
        handoff = Handoff(request_id, source, destination)
        if self._config.handoff is HandoffMode.LAYER_WISE:
            handoff.stream = LayerStream(num_tokens, self._config.num_layer_groups)
        self.by_request[request_id] = handoff
        self.num_to[destination] += 1
        return handoff

    def hold(self, handoff: Handoff, num_tokens: int, now_ns: int) -> None:
        """Start the lease of a source that has computed the whole prompt."""
        handoff.lease_end_ns = now_ns + self._config.handoff_deadline_ns
        heapq.heappush(self._leases, (handoff.lease_end_ns, handoff.request_id))
        if handoff.stream is not None:
            handoff.stream.add_all(num_tokens)

    def ready(self, handoff: Handoff, piece: KvPiece) -> None:
        """Take in that a piece is computed; a hand-off of the whole prompt waits for its end."""
        if handoff.stream is not None:
            handoff.stream.add(piece)

    # ------------------------------------------------------------------ moving bytes

    def send(self, handoff: Handoff, num_tokens: int) -> TransferPlan | None:
        """Return what can move now and was not sent before, as one transfer, or None."""
        if handoff.has_failed:
            return None
        stream = handoff.stream
        if stream is None:
            if handoff.state is not HandoffState.RESERVED or handoff.lease_end_ns is None:
                return None
            return self._start(handoff, self._sizes_of(handoff)(num_tokens))
        if handoff.state is HandoffState.ASKED:
            return None
        sizes = stream.take(self._sizes_of(handoff))
        return None if sizes is None else self._start(handoff, sizes)

    def _sizes_of(self, handoff: Handoff) -> RankBytes:
        """Return the bytes by pair of ranks for so many tokens, at its source's turn."""
        if len(self._sizes) == 1:
            return self._sizes[0]
        if handoff.turn < 0:
            handoff.turn = self._num_sent[handoff.source]
            self._num_sent[handoff.source] += 1
        return self._sizes[handoff.turn % len(self._sizes)]

    def _start(self, handoff: Handoff, sizes: Sequence[int]) -> TransferPlan:
        if handoff.state is HandoffState.RESERVED:
            handoff.move_to(HandoffState.TRANSFERRING)
        transfer_id = self._num_transfers
        self._num_transfers += 1
        self._moving[transfer_id] = handoff
        handoff.transfer_ids.append(transfer_id)
        return TransferPlan(transfer_id, self._parts(handoff, sizes))

    def _parts(self, handoff: Handoff, sizes: Sequence[int]) -> tuple[RankTransfer, ...]:
        route = handoff.source, handoff.destination
        if route not in self._gpus:
            self._gpus[route] = self._gpus_of(*route)
        senders, receivers = self._gpus[route]
        parts = map(_PART, zip(senders, receivers, sizes, strict=True))
        return tuple(parts) if all(sizes) else tuple(part for part in parts if part.num_bytes)

    def _gpus_of(self, source: int, destination: int) -> tuple[list[int], list[int]]:
        """Return which GPU sends and which receives, pair of ranks by pair of ranks."""
        assert self._pairs is not None
        senders, receivers = self._config.worker_gpus[source], self._config.worker_gpus[destination]
        return [senders[src] for src, _ in self._pairs], [receivers[dst] for _, dst in self._pairs]

    def arrived(self, transfer_id: int) -> Handoff:
        """Count a transfer as arrived and return its hand-off.

        Raises:
            KeyError: it was cancelled or never started.
        """
        handoff = self._moving.pop(transfer_id)
        handoff.transfer_ids.remove(transfer_id)
        return handoff

    def failed(self, transfer_id: int) -> Handoff | None:
        """Stop a hand-off whose transfer will not complete; None if that one is not under way."""
        handoff = self._moving.get(transfer_id)
        if handoff is not None:
            handoff.has_failed = True
        return handoff

    # ------------------------------------------------------------------ ending

    def acknowledge(self, handoff: Handoff) -> None:
        """Close a hand-off that is complete."""
        handoff.move_to(HandoffState.ACKNOWLEDGED)
        del self.by_request[handoff.request_id]
        self.num_to[handoff.destination] -= 1

    def cancel(self, handoff: Handoff) -> list[int]:
        """Close a hand-off that is given up; return its transfers under way, oldest first."""
        handoff.move_to(HandoffState.CANCELLED)
        del self.by_request[handoff.request_id]
        self.num_to[handoff.destination] -= 1
        transfer_ids, handoff.transfer_ids = handoff.transfer_ids, []
        for transfer_id in transfer_ids:
            del self._moving[transfer_id]
        return transfer_ids

    def next_deadline_ns(self) -> int | None:
        """Return the earliest end of a lease that is still needed."""
        leases, by_request = self._leases, self.by_request
        while leases:
            lease_end_ns, request_id = leases[0]
            handoff = by_request.get(request_id)
            if handoff is not None and handoff.lease_end_ns == lease_end_ns:
                return lease_end_ns
            heapq.heappop(leases)
        return None

    def expired(self, now_ns: int) -> Handoff | None:
        """Return a hand-off whose lease has ended, the earliest first, or None."""
        lease_end_ns = self.next_deadline_ns()
        if lease_end_ns is None or lease_end_ns > now_ns:
            return None
        return self.by_request[self._leases[0][1]]

    def check_invariants(self) -> None:
        """Assert I1 to I5."""
        leases = set(self._leases)
        for request_id, handoff in self.by_request.items():
            assert handoff.request_id == request_id
            assert not handoff.is_over, "I1 (INV-10)"
            has_begun = handoff.state is HandoffState.TRANSFERRING
            assert has_begun or not handoff.transfer_ids, "I2"
            assert all(self._moving[i] is handoff for i in handoff.transfer_ids), "I2"
            assert not handoff.is_prefilled or (handoff.lease_end_ns, request_id) in leases, "I3"
            assert not (handoff.has_failed and handoff.is_prefilled), "I4"
            if handoff.stream is not None:
                handoff.stream.check_invariants()
        moving = sum(len(handoff.transfer_ids) for handoff in self.by_request.values())
        assert len(self._moving) == moving, "I2"
        num_to = [0] * len(self.num_to)
        for handoff in self.by_request.values():
            num_to[handoff.destination] += 1
        assert self.num_to == num_to, "I5"
