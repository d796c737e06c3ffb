"""What a hand-off tells the network to move."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankTransfer:
    """Bytes from one GPU to another, by their indices in the fabric."""

    src_gpu: int
    dst_gpu: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Everything one hand-off moves; it is done when its last byte has arrived."""

    transfer_id: int
    parts: tuple[RankTransfer, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.num_bytes for part in self.parts)
