"""Tells how far a step has come while it runs, so that KV cache can leave layer by layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvfabric.engine.decoder import Attention
from kvfabric.engine.executor_port import Reached


class ReportingAttention:
    """Attention that calls ``reached`` once the K and V of some layers are stored."""

    def __init__(self, attention: Attention, layer_ends: Sequence[int], reached: Reached) -> None:
        """Report after the layers before each of ``layer_ends``."""
        self._attention, self._reached = attention, reached
        self._layer_ends = frozenset(layer_ends)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in one layer; see ``PagedAttention.attend``."""
        out = self._attention.attend(layer, q, k, v)
        if layer + 1 in self._layer_ends:
            if out.is_cuda:  # what was asked for is not computed yet
                torch.cuda.current_stream(out.device).synchronize()
            self._reached(layer + 1)
        return out
