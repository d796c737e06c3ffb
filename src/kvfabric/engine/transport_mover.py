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
    """Implements ``worker.BlockMover``; a transfer is one piece of all layers."""

    def __init__(self, transport: KvTransport, num_layers: int) -> None:
        """Take over a transport."""
        self._transport = transport
        self._num_layers = num_layers

    def send(self, transfer_id: int, peer: str, block_ids: Sequence[int]) -> None:
        """Begin to send blocks."""
        self._transport.send(transfer_id, peer, [self._piece(block_ids)])

    def expect(self, transfer_id: int, block_ids: Sequence[int]) -> None:
        """Let a transfer write to blocks."""
        self._transport.expect(transfer_id, [self._piece(block_ids)])

    def _piece(self, block_ids: Sequence[int]) -> Piece:
        return Piece(tuple(block_ids), 0, self._num_layers)

    def cancel(self, transfer_id: int) -> None:
        """Stop a transfer."""
        self._transport.cancel(transfer_id)

    def close(self) -> None:
        """Fail what is under way, and end the threads."""
        self._transport.close()
