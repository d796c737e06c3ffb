"""What a hand-off tells the network to move, and what becomes ready to be moved."""

from dataclasses import dataclass
from typing import Final, NamedTuple


class RankTransfer(NamedTuple):
    """Bytes from one GPU to another, by their indices in the fabric."""

    src_gpu: int
    dst_gpu: int
    num_bytes: int


@dataclass(slots=True, init=False)
class TransferPlan:
    """One piece of a hand-off, or all of it; it is done when its last byte has arrived.

    Ids are unique in a run and never used again.
    """

    transfer_id: Final[int]
    parts: Final[tuple[RankTransfer, ...]]

    def __init__(self, transfer_id: int, parts: tuple[RankTransfer, ...]) -> None:
        """Set the fields."""
        self.transfer_id = transfer_id
        self.parts = parts

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all parts."""
        return sum([part.num_bytes for part in self.parts])


@dataclass(frozen=True, slots=True)
class KvPiece:
    """KV cache that a prefill step has just computed: some tokens in one layer group.

    Attributes:
        first_token: position of the first token, counted in the prompt.
        end_token: position after the last token.
        group: index of the layer group, from the first layers to the last; how many groups there
            are is a setting of the control.
    """

    first_token: int
    end_token: int
    group: int
