"""The widened product is the product, more exact than torch's own in bf16."""

import pytest
import torch
from torch.nn.functional import linear

from kvfabric.engine.projection import PART_VALUES, Projection

torch.set_num_threads(1)


@pytest.mark.parametrize("rows", [1, 7, 8, 33])
@pytest.mark.parametrize("num_out", [1, 40, 3 * PART_VALUES // 512 + 5])
def test_widened_product(rows: int, num_out: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(torch.bfloat16)
        for shape in ((rows, 512), (num_out, 512), (num_out,))
    )
    project = Projection(torch.bfloat16, torch.device("cpu"))
    project.widens = True
    exact = linear(x.double(), weight.double())
    # bf16 keeps 8 bits: half a unit in the last place, and one more where a bias is added.
    assert torch.allclose(project(x, weight).double(), exact, rtol=2**-8, atol=1e-2)
    with_bias = project(x, weight, bias).double()
    assert torch.allclose(with_bias, exact + bias.double(), rtol=2**-7, atol=0.3)


def test_fp32_is_never_widened() -> None:
    assert not Projection(torch.float32, torch.device("cpu")).widens
