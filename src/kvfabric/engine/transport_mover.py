"""A worker's KV blocks moved by a transport; see ``transport.port``."""

from collections.abc import Sequence

from kvfabric.engine import messages
from kvfabric.engine.transport.port import (
    KvTransport,
    Piece,
    Report,
    Side,
    TransferDone,
    TransferFailed,
    TransportEvent,
)
from kvfabric.engine.worker import Tell


def report_to(tell: Tell) -> Report:
    """Return what passes on what the control acts upon: the receiver's word, and failures."""

    def report(event: TransportEvent) -> None:
        match event:
            case TransferDone(transfer_id, Side.DESTINATION):
                tell(messages.TransferDone(transfer_id))
            case TransferFailed(transfer_id, side, reason):
                tell(messages.TransferFailed(transfer_id, f"{side.value}: {reason}"))
            case _:
                pass  # the source's acknowledgement, or a stranger that was not let in

    return report


class TransportMover:
    """Implements ``worker.BlockMover``."""

    def __init__(self, transport: KvTransport) -> None:
        """Take over a transport."""
        self._transport = transport

    def send(self, transfer_id: int, peer: str, pieces: Sequence[Piece]) -> None:
        """Begin to send blocks."""
        self._transport.send(transfer_id, peer, pieces)

    def expect(self, transfer_id: int, pieces: Sequence[Piece]) -> None:
        """Let a transfer write to blocks."""
        self._transport.expect(transfer_id, pieces)

    def cancel(self, transfer_id: int) -> None:
        """Stop a transfer."""
        self._transport.cancel(transfer_id)

    def close(self) -> None:
        """Fail what is under way, and end the threads."""
        self._transport.close()
