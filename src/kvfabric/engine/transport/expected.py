"""All transfers that a worker expects, and the offers that came before they were expected."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvfabric.engine.transport.connection import now_ns
from kvfabric.engine.transport.frames import Frame
from kvfabric.engine.transport.incoming import Incoming, Teller
from kvfabric.engine.transport.outgoing import worth_sending
from kvfabric.engine.transport.port import (
    BlockMemory,
    Deadlines,
    Piece,
    Report,
    Side,
    TransferDone,
    TransferFailed,
)

MAX_EARLY_OFFERS = 4096


class _Offer(NamedTuple):
    frame: Frame
    teller: Teller
    deadline_ns: int
    start_ns: int


class ExpectedTransfers:
    """Brings together what is expected and what is offered, in whichever order they come.

    Invariants:
        I1. an id is expected or offered early, not both.
        I2. an expected transfer has a teller from the moment an offer of it fits.
        I3. a transfer that is not in here any more is over, and reported unless cancelled.
    """

    def __init__(
        self,
        memory: BlockMemory,
        deadlines: Deadlines,
        report: Report,
        set_timer: Callable[[int], None],
    ) -> None:
        """Expect nothing; ``set_timer`` is told of each new deadline."""
        self._memory, self._deadlines, self._report = memory, deadlines, report
        self._set_timer = set_timer
        self._lock = threading.Lock()
        self._expected: dict[int, Incoming] = {}
        self._offers: dict[int, _Offer] = {}

    # ------------------------------------------------------------------ this worker asks

    def expect(
        self, transfer_id: int, pieces: Sequence[Piece], timeout_ns: int | None = None
    ) -> None:
        """Expect a transfer; ValueError if it is."""
        wanted = worth_sending(pieces, self._memory)
        timeout_ns = self._deadlines.transfer_ns if timeout_ns is None else timeout_ns
        incoming = Incoming(transfer_id, wanted, self._memory, now_ns(), timeout_ns)
        with self._lock:
            if transfer_id in self._expected:
                raise ValueError(f"transfer {transfer_id} is expected already")
            self._expected[transfer_id] = incoming
            offer = self._offers.pop(transfer_id, None)
            misfit = self._match(incoming, offer) if offer is not None else ""
        if offer is not None and misfit:
            offer.teller.refuse(transfer_id, misfit)
            self.fail(incoming, misfit)
        self._set_timer(incoming.deadline_ns)

    def cancel(self, transfer_id: int) -> bool:
        """Forget a transfer; return whether it was expected. Its blocks are free then."""
        with self._lock:
            incoming = self._expected.pop(transfer_id, None)
        if incoming is None or not incoming.end():
            return False
        if incoming.teller is not None:
            incoming.teller.refuse(transfer_id, "the receiver cancelled it")
        return True

    # ------------------------------------------------------------------ connections tell

    def offer(self, frame: Frame, teller: Teller) -> None:
        """Take in a sender's offer: grant it, refuse it, or let it wait."""
        transfer_id = frame.transfer_id
        offer = _Offer(frame, teller, now_ns() + self._deadlines.early_ns, now_ns())
        with self._lock:
            incoming = self._expected.get(transfer_id)
            misfit = self._keep(offer) if incoming is None else self._match(incoming, offer)
        if misfit:
            teller.refuse(transfer_id, misfit)
            if incoming is not None and incoming.teller is None:
                self.fail(incoming, misfit)
        if incoming is None:
            self._set_timer(offer.deadline_ns)

    def _keep(self, offer: _Offer) -> str:
        if len(self._offers) >= MAX_EARLY_OFFERS:
            return f"{MAX_EARLY_OFFERS} offers wait already"
        if offer.frame.transfer_id in self._offers:
            return "it is offered twice"
        self._offers[offer.frame.transfer_id] = offer
        return ""

    def _match(self, incoming: Incoming, offer: _Offer) -> str:
        if incoming.teller is not None:
            return "it comes by another connection already"
        misfit = incoming.misfit_of_offer(offer.frame)
        if not misfit:
            incoming.teller, incoming.start_ns = offer.teller, offer.start_ns
            offer.teller.grant(incoming)
        return misfit

    def withdraw(self, transfer_id: int, teller: Teller) -> None:
        """Forget an offer that its sender takes back."""
        with self._lock:
            offer = self._offers.get(transfer_id)
            if offer is not None and offer.teller is teller:
                del self._offers[transfer_id]

    def finish(self, incoming: Incoming) -> bool:
        """Report that all bytes are there; return False if the transfer was over before."""
        if not self._end(incoming):
            return False
        self._report(
            TransferDone(
                incoming.transfer_id, Side.DESTINATION, incoming.num_bytes, incoming.duration_ns
            )
        )
        return True

    def fail(self, incoming: Incoming, reason: str, *, is_told: bool = True) -> None:
        """End a transfer, unless it is over, report why, and tell its sender if it is there."""
        if not self._end(incoming):
            return
        if is_told and incoming.teller is not None:
            incoming.teller.refuse(incoming.transfer_id, reason)
        self._report(TransferFailed(incoming.transfer_id, Side.DESTINATION, reason))

    def _end(self, incoming: Incoming) -> bool:
        with self._lock:
            if self._expected.get(incoming.transfer_id) is incoming:
                del self._expected[incoming.transfer_id]
        return incoming.end()

    def lost(self, teller: Teller, reason: str) -> None:
        """Fail what comes by a connection that has ended; forget what it offered."""
        with self._lock:
            coming = [i for i in self._expected.values() if i.teller is teller]
            offered = [i for i, offer in self._offers.items() if offer.teller is teller]
            for transfer_id in offered:
                del self._offers[transfer_id]
        for incoming in coming:
            self.fail(incoming, reason, is_told=False)

    # ------------------------------------------------------------------ time passes

    def next_deadline_ns(self) -> int | None:
        """Return when ``expire`` has something to do."""
        with self._lock:
            deadlines = [incoming.deadline_ns for incoming in self._expected.values()]
            deadlines += [offer.deadline_ns for offer in self._offers.values()]
        return min(deadlines, default=None)

    def expire(self) -> None:
        """Fail what should be here by now; refuse offers that nobody expects."""
        now = now_ns()
        with self._lock:
            late = [i for i in self._expected.values() if i.deadline_ns <= now]
            unexpected = [i for i, offer in self._offers.items() if offer.deadline_ns <= now]
            offers = [self._offers.pop(transfer_id) for transfer_id in unexpected]
        for incoming in late:
            seconds = (incoming.deadline_ns - incoming.asked_ns) / 1e9
            self.fail(incoming, f"not done in {seconds:g} s: {incoming.stage}")
        for offer in offers:
            transfer_id = offer.frame.transfer_id
            offer.teller.refuse(transfer_id, f"nobody expects transfer {transfer_id}")

    def fail_all(self, reason: str) -> None:
        """Fail all that is expected."""
        with self._lock:
            left = list(self._expected.values())
        for incoming in left:
            self.fail(incoming, reason)

    @property
    def num_waiting(self) -> int:
        """Return the transfers expected and the offers that wait."""
        with self._lock:
            return len(self._expected) + len(self._offers)
