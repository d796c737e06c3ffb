"""A request that the model cannot take is refused with one message."""

import pytest

from kvfabric.engine.admission import Limits
from kvfabric.errors import ConfigError

LIMITS = Limits(max_positions=10, vocab_size=100)


def test_what_fits_exactly_is_taken() -> None:
    LIMITS.check([0, 99, 5, 6], 6)


@pytest.mark.parametrize(
    ("prompt_ids", "max_tokens", "text"),
    [
        ([1, 2, 3, 4], 7, "11 tokens of prompt and output, the model has 10 positions"),
        ([1, 100], 1, "token id 100 in the prompt, the model's lie in [0, 100)"),
        ([-1], 1, "token id -1 in the prompt"),
        ([], 1, "0 tokens of prompt, 1 of output"),
        ([1], 0, "1 tokens of prompt, 0 of output"),
    ],
)
def test_what_does_not_fit_is_refused(prompt_ids: list[int], max_tokens: int, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LIMITS.check(prompt_ids, max_tokens)
    assert text in str(refused.value)
