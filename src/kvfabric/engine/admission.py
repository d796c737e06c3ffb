"""What a model can take: a request beyond it is refused before it reaches a worker.

A worker has no way to refuse one: a position or token id without a row in a table ends its step,
and with it everything that the worker holds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvfabric.errors import ConfigError


class Limits(NamedTuple):
    """Of a model.

    Attributes:
        max_positions: most tokens of a request, prompt and output.
        vocab_size: token ids lie below.
    """

    max_positions: int
    vocab_size: int

    def token_outside(self, token_ids: Sequence[int]) -> int | None:
        """Return a token id that the model does not have, or None."""
        return next((i for i in token_ids if not 0 <= i < self.vocab_size), None)

    def check(self, prompt_ids: Sequence[int], max_tokens: int) -> None:
        """Refuse a request that the model cannot take.

        Raises:
            ConfigError: it has no prompt or output, more tokens than positions, or other token ids.
        """
        if not prompt_ids or max_tokens < 1:
            raise ConfigError(
                f"{len(prompt_ids)} tokens of prompt, {max_tokens} of output",
                hint="Write at least one of each",
            )
        num_tokens = len(prompt_ids) + max_tokens
        if num_tokens > self.max_positions:
            raise ConfigError(
                f"{num_tokens} tokens of prompt and output, the model has {self.max_positions} "
                "positions",
                hint="Write fewer, or shorten the prompt",
            )
        outside = self.token_outside(prompt_ids)
        if outside is not None:
            raise ConfigError(
                f"token id {outside} in the prompt, the model's lie in [0, {self.vocab_size})",
                hint="Use the model's own tokenizer",
            )
