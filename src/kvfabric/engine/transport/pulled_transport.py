"""KV block transfers whose bytes a one-sided library moves; sockets carry what goes around them.

    sender                                 receiver
    copies its blocks to staging
    ticket (where, how many, stamp)  ->    reads them into its own staging, then into its blocks
                                     <-    receipt: the sender's staging is free

Ticket and receipt are transfers of ``SocketTransport``, so greeting, deadlines, cancellation and
failures are those of sockets; no peer ever writes into memory of another. The receiver reads as
much as it expects, whatever the ticket says.

A stamp stands before staged bytes and is wiped when they are given up. The receiver reads it last:
if it is still there, what was read before it was whole.
"""

import json
import queue
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.engine.transport.connection import now_ns
from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.one_sided import OneSidedReader, PullError
from kvfabric.engine.transport.port import (
    BlockMemory,
    Deadlines,
    Piece,
    Report,
    Side,
    TransferDone,
    TransferFailed,
    TransportEvent,
)
from kvfabric.engine.transport.socket_transport import SocketTransport
from kvfabric.engine.transport.staging import StagingArea, StagingFullError

TICKET_BYTES = 1 << 13
STAMP_BYTES = 16
_PROGRESS_S = 0.0005


@dataclass(slots=True, eq=False)
class _Transfer:
    """One transfer at one of its sides."""

    transfer_id: int
    side: Side
    pieces: tuple[Piece, ...]
    num_bytes: int
    start_ns: int
    deadline_ns: int
    ticket: bytearray
    offset: int | None = None  # of its staging
    stamp: bytes = b""
    is_over: bool = False


class _Tickets:
    """``BlockMemory`` of tickets and receipts: block ids name them."""

    def __init__(self) -> None:
        self.by_id: dict[int, bytearray] = {}

    def num_bytes(self, piece: Piece) -> int:
        return TICKET_BYTES * len(piece.block_ids)

    def outgoing(self, piece: Piece) -> Sequence[memoryview]:
        return [memoryview(self.by_id.get(i, bytearray(TICKET_BYTES))) for i in piece.block_ids]

    incoming = outgoing

    def received(self, piece: Piece, views: Sequence[memoryview]) -> None:
        """Do nothing: the bytes are in place."""


class PulledTransport:
    """One worker's end of all its transfers; implements ``port.KvTransport``."""

    def __init__(
        self,
        identity: Identity,
        memory: BlockMemory,
        report: Report,
        *,
        reader: OneSidedReader,
        area: StagingArea,
        listen_on: str = "tcp:127.0.0.1:0",
        deadlines: Deadlines | None = None,
    ) -> None:
        """Listen for peers; ``reader`` has registered ``area``.

        Raises:
            ConfigError: it cannot listen there.
        """
        self._memory, self._report = memory, report
        self._reader, self._area = reader, area
        self._deadlines = deadlines or Deadlines()
        self._tickets = _Tickets()
        self._lock = threading.RLock()  # held while bytes are put into blocks
        self._open: dict[tuple[int, Side], _Transfer] = {}
        self._todo: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        self._sockets = SocketTransport(
            identity, self._tickets, self._heard, listen_on=listen_on, deadlines=self._deadlines
        )
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._pull_all, name="kv-pull", daemon=True),
            threading.Thread(target=self._keep_moving, name="kv-progress", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        """Return where peers reach this worker."""
        return self._sockets.address

    # ------------------------------------------------------------------ asked for

    def send(
        self, transfer_id: int, peer: str, pieces: Sequence[Piece], *, timeout_ns: int | None = None
    ) -> None:
        """Send pieces to a peer; see ``port.KvTransport``. The blocks are copied in this call."""
        transfer = self._begin(transfer_id, Side.SOURCE, pieces, timeout_ns)
        try:
            self._stage(transfer)
        except StagingFullError as error:
            self._end(transfer, str(error))
            return
        ticket = json.dumps(
            [
                self.address,
                self._reader.descriptor,
                transfer.offset,
                transfer.num_bytes,
                transfer.stamp.hex(),
            ]
        ).encode()
        assert len(ticket) <= TICKET_BYTES, "descriptors are short"
        transfer.ticket[: len(ticket)] = ticket
        left_ns = transfer.deadline_ns - transfer.start_ns
        self._sockets.expect(
            _receipt(transfer_id), _piece(_receipt(transfer_id)), timeout_ns=left_ns
        )
        self._sockets.send(
            _ticket(transfer_id), peer, _piece(_ticket(transfer_id)), timeout_ns=left_ns
        )

    def expect(
        self, transfer_id: int, pieces: Sequence[Piece], *, timeout_ns: int | None = None
    ) -> None:
        """Take what a transfer brings into blocks; see ``port.KvTransport``."""
        transfer = self._begin(transfer_id, Side.DESTINATION, pieces, timeout_ns)
        left_ns = transfer.deadline_ns - transfer.start_ns
        self._sockets.expect(_ticket(transfer_id), _piece(_ticket(transfer_id)), timeout_ns=left_ns)

    def _begin(
        self, transfer_id: int, side: Side, pieces: Sequence[Piece], timeout_ns: int | None
    ) -> _Transfer:
        timeout_ns = self._deadlines.transfer_ns if timeout_ns is None else timeout_ns
        start_ns = now_ns()
        num_bytes = sum(map(self._memory.num_bytes, pieces))
        ticket = bytearray(TICKET_BYTES)
        transfer = _Transfer(
            transfer_id, side, tuple(pieces), num_bytes, start_ns, start_ns + timeout_ns, ticket
        )
        with self._lock:
            if (transfer_id, side) in self._open:
                verb = "being sent" if side is Side.SOURCE else "expected"
                raise ValueError(f"transfer {transfer_id} is {verb} already")
            self._open[transfer_id, side] = transfer
            self._tickets.by_id[_ticket(transfer_id)] = ticket
        return transfer

    def _stage(self, transfer: _Transfer) -> None:
        at = transfer.offset = self._area.take(STAMP_BYTES + transfer.num_bytes)
        transfer.stamp = secrets.token_bytes(STAMP_BYTES)
        self._area.buffer[at : at + STAMP_BYTES] = transfer.stamp
        at += STAMP_BYTES
        for piece in transfer.pieces:
            for view in self._memory.outgoing(piece):
                self._area.buffer[at : at + len(view)] = view
                at += len(view)

    def cancel(self, transfer_id: int) -> bool:
        """Stop a transfer; see ``port.KvTransport``."""
        was_open = False
        for side in Side:
            with self._lock:
                transfer = self._open.get((transfer_id, side))
            if transfer is not None and self._close_one(transfer):
                was_open = True
                self._sockets.cancel(_ticket(transfer_id))
                self._sockets.cancel(_receipt(transfer_id))
        return was_open

    # ------------------------------------------------------------------ what comes of it

    def _heard(self, event: TransportEvent) -> None:
        match event:
            case TransferDone(socket_id, Side.DESTINATION) if socket_id % 2 == 0:
                transfer = self._open.get((socket_id // 2, Side.DESTINATION))
                if transfer is not None:
                    self._todo.put(transfer)
            case TransferDone(socket_id, Side.DESTINATION):
                transfer = self._open.get((socket_id // 2, Side.SOURCE))
                if transfer is not None:
                    self._end(transfer)
            case TransferFailed(socket_id, side, reason):
                is_ticket = socket_id % 2 == 0
                # a receipt that cannot be sent is the sender's loss: it fails by its deadline
                if is_ticket or side is Side.DESTINATION:
                    transfer = self._open.get((socket_id // 2, side if is_ticket else Side.SOURCE))
                    if transfer is not None:
                        self._end(transfer, reason)
            case TransferDone():
                pass  # a ticket or receipt has arrived at the other side
            case _:
                self._report(event)

    def _pull_all(self) -> None:
        while (transfer := self._todo.get()) is not None:
            try:
                peer = self._pull(transfer)
            except (PullError, StagingFullError) as error:
                self._end(transfer, str(error))
                continue
            receipt = _receipt(transfer.transfer_id)
            self._end(transfer)
            self._sockets.send(receipt, peer, _piece(receipt))

    def _pull(self, transfer: _Transfer) -> str:
        """Read what a ticket names and put it into blocks; return where its sender is."""
        try:
            peer, descriptor, offset, num_bytes, stamp = json.loads(transfer.ticket.rstrip(b"\0"))
        except (ValueError, TypeError):
            raise PullError("the ticket is garbage") from None
        if num_bytes != transfer.num_bytes or not isinstance(offset, int) or offset < 0:
            raise PullError(f"offered {num_bytes} bytes, expected {transfer.num_bytes}")
        size, deadline_ns = transfer.num_bytes, transfer.deadline_ns
        at = self._area.take(STAMP_BYTES + size)
        data = at + STAMP_BYTES
        try:
            self._reader.read(descriptor, offset + STAMP_BYTES, data, size, deadline_ns)
            self._reader.read(descriptor, offset, at, STAMP_BYTES, deadline_ns)
            if bytes(self._area.buffer[at:data]).hex() != stamp:
                raise PullError("the sender has given its bytes up")
            with self._lock:
                if not transfer.is_over:
                    self._put_in_place(transfer, data)
        finally:
            self._area.give_back(at)
        return str(peer)

    def _put_in_place(self, transfer: _Transfer, at: int) -> None:
        for piece in transfer.pieces:
            views = self._memory.incoming(piece)
            for view in views:
                view[:] = self._area.buffer[at : at + len(view)]
                at += len(view)
            self._memory.received(piece, views)

    def _keep_moving(self) -> None:
        """Let peers read what is staged, while something is."""
        while not self._ended.wait(_PROGRESS_S if self._open else 0.01):
            if self._open:
                self._reader.progress()

    # ------------------------------------------------------------------ ending

    def _close_one(self, transfer: _Transfer) -> bool:
        """Let nothing more happen to a transfer; return False if that was so before."""
        with self._lock:
            if transfer.is_over:
                return False
            transfer.is_over = True
            del self._open[transfer.transfer_id, transfer.side]
            if transfer.side is Side.SOURCE and transfer.offset is not None:
                stamp = slice(transfer.offset, transfer.offset + STAMP_BYTES)
                self._area.buffer[stamp] = bytes(STAMP_BYTES)
                self._area.give_back(transfer.offset)
            if not any((transfer.transfer_id, side) in self._open for side in Side):
                self._tickets.by_id.pop(_ticket(transfer.transfer_id), None)
            return True

    def _end(self, transfer: _Transfer, failure: str = "") -> None:
        """Report how a transfer ended, unless it is over."""
        if not self._close_one(transfer):
            return
        transfer_id, side = transfer.transfer_id, transfer.side
        if failure:
            self._sockets.cancel(_ticket(transfer_id))
            if side is Side.SOURCE:
                self._sockets.cancel(_receipt(transfer_id))
            self._report(TransferFailed(transfer_id, side, failure))
        else:
            duration_ns = now_ns() - transfer.start_ns
            self._report(TransferDone(transfer_id, side, transfer.num_bytes, duration_ns))

    def close(self) -> None:
        """Fail what is under way, cut all connections, and wait for the threads to end."""
        if self._ended.is_set():
            return
        self._todo.put(None)
        self._threads[0].join()
        with self._lock:
            left = list(self._open.values())
        self._sockets.close()
        for transfer in left:
            self._end(transfer, "this worker closes its connections")
        self._ended.set()
        self._threads[1].join()
        self._reader.close()


def _ticket(transfer_id: int) -> int:
    return 2 * transfer_id


def _receipt(transfer_id: int) -> int:
    return 2 * transfer_id + 1


def _piece(socket_id: int) -> list[Piece]:
    return [Piece((socket_id,), 0, 1)]
