"""Memory for gathered rows that is kept between calls: fresh pages cost more than the copy."""

import torch
from torch import Tensor


class GatherBuffer:
    """One flat tensor that grows to the largest request."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Own nothing yet."""
        self._flat = torch.empty(0, dtype=dtype, device=device)

    def rows(self, count: int, width: int) -> Tensor:
        """Return ``[count, width]`` of uninitialized memory, valid until the next call."""
        needed = count * width
        if self._flat.numel() < needed:
            self._flat = torch.empty(
                needed + needed // 4, dtype=self._flat.dtype, device=self._flat.device
            )
        return self._flat[:needed].view(count, width)
