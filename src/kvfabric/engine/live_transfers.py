"""The transfers of a running cluster: messages to both sides, and what they were."""

from collections.abc import Callable, Sequence

from kvfabric.engine.block_transfers import BlockTransfers, Moving, Part
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.live_worker import LiveWorker
from kvfabric.engine.messages import CancelBlocks, ExpectBlocks, SendBlocks, ToWorker
from kvfabric.engine.transport.port import Piece
from kvfabric.protocol.transfer import TransferPlan

Post = Callable[[int, ToWorker], None]
"""Sends a message to a worker by id, in order, without waiting; to a dead one it does nothing."""


class LiveTransfers:
    """Lets workers move blocks, as the control asks for it.

    Attributes:
        blocks: which blocks move, and what is under way.
    """

    def __init__(
        self,
        workers: Sequence[LiveWorker],
        blocks: BlockTransfers,
        post: Post,
        log: DecisionLog | None,
    ) -> None:
        """Start with nothing under way."""
        self._workers, self._post, self._log = workers, post, log
        self.blocks = blocks

    def start(
        self, transfer: TransferPlan, request_id: int, num_prompt_tokens: int, now_ns: int
    ) -> None:
        """Tell both sides of a transfer; one without a block has arrived by the next instant."""
        (ranks,) = transfer.parts
        source, destination = self._workers[ranks.src_gpu], self._workers[ranks.dst_gpu]
        parts = self.blocks.next_parts(request_id, num_prompt_tokens)
        moving = Moving(request_id, source.worker_id, destination.worker_id, now_ns)
        self.blocks.begin(transfer.transfer_id, moving, parts)
        if not parts:
            return
        to_fill = _pieces(parts, destination.scheduler.kv.tables[request_id])
        to_read = _pieces(parts, source.scheduler.kv.tables[request_id])
        self._post(destination.worker_id, ExpectBlocks(transfer.transfer_id, to_fill))
        self._post(source.worker_id, SendBlocks(transfer.transfer_id, destination.address, to_read))

    def arrived(self, transfer_id: int, now_ns: int) -> Moving | None:
        """Take in that all bytes are there; return what it was, None if it was stopped before."""
        moving = self.blocks.end(transfer_id, now_ns)
        if moving is not None and self._log is not None:
            self._log.transfers[transfer_id] = moving.start_ns, now_ns
            self._log.transfer_bytes[transfer_id] = moving.num_bytes
        return moving

    def is_lost(self, transfer_id: int, now_ns: int) -> bool:
        """Return whether a transfer that one side gave up is still under way."""
        if not self.blocks.is_moving(transfer_id):
            return False  # it has ended meanwhile, or the other side has told
        if self._log is not None:
            self._log.broken.append((now_ns, transfer_id))
        return True

    def stop(self, transfer_id: int) -> None:
        """Stop both sides before another step can use the blocks: messages keep their order."""
        moving = self.blocks.end(transfer_id, None)
        assert moving is not None, "a transfer stopped that is not under way"
        for worker_id in (moving.source, moving.destination):
            self._post(worker_id, CancelBlocks(transfer_id))


def _pieces(parts: Sequence[Part], table: Sequence[int]) -> tuple[Piece, ...]:
    return tuple(
        Piece(tuple(table[part.blocks.start : part.blocks.stop]), part.first_layer, part.end_layer)
        for part in parts
    )
