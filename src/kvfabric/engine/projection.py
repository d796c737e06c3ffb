"""Matrix products of a decoder; in bf16 also on CPUs whose own bf16 product is slow.

Without AVX-512 or AMX, torch multiplies bf16 matrices of more than a few rows several times slower
than fp32 ones (8 against 55 Gflop/s on one core of an AVX2 EPYC). There, a part of the weights at a
time is widened to fp32, small enough to stay in the CPU's cache, and multiplied in fp32.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from kvfabric.engine.gather_buffer import GatherBuffer

WIDEN_FROM_ROWS = 8  # fewer rows are bound by reading the weights, which widening does not spare
PART_VALUES = 1 << 18


def multiplies_slowly(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether torch multiplies this dtype slower than fp32 on this device."""
    if dtype not in {torch.bfloat16, torch.float16} or device.type != "cpu":
        return False
    return dtype is torch.float16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001


class Projection:
    """``x @ weight.T + bias`` for the weights of one model."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Look once whether this CPU multiplies the dtype well."""
        self.widens = multiplies_slowly(dtype, device)
        self._wide = GatherBuffer(torch.float32, device)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``[rows, out]`` of ``x`` ``[rows, in]`` and ``weight`` ``[out, in]``."""
        if self.widens and x.shape[0] >= WIDEN_FROM_ROWS:
            return self._widened(x, weight, bias)
        return linear(x, weight, bias)

    def _widened(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        num_out, num_in = weight.shape
        step = max(1, PART_VALUES // num_in)
        wide_x = x.to(torch.float32)
        out = torch.empty(x.shape[0], num_out, dtype=x.dtype, device=x.device)
        for start in range(0, num_out, step):
            part = weight[start : start + step]
            wide = self._wide.rows(part.shape[0], num_in)
            wide.copy_(part)
            out[:, start : start + step] = wide_x @ wide.t()
        return out if bias is None else out.add_(bias)
