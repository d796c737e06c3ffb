"""Cold prompts among generated ones: sessions that have nothing in common with any other."""

from dataclasses import dataclass

import numpy as np

from kvfabric.workload.lengths import Length, draw_lengths
from kvfabric.workload.limits import require_real


@dataclass(frozen=True, slots=True)
class ColdPrompts:
    """Sessions of one turn without a shared prefix.

    Attributes:
        share: of the sessions. Where the others have T turns in the mean, the share of prompts is
            ``share / (share + (1 - share) T)``.
        prompt: tokens of such a prompt; None: as the new tokens of any other turn.
    """

    share: float
    prompt: Length | None = None

    def __post_init__(self) -> None:
        """Refuse a share outside 0 to 1."""
        require_real(self.share, "share", low=0.0, high=1.0)


def draw_cold(cold: ColdPrompts | None, rng: np.random.Generator, num_sessions: int) -> list[bool]:
    """Return which sessions are cold; with a larger share, those of a smaller one are too."""
    if cold is None:
        return [False] * num_sessions
    return [point < cold.share for point in rng.random(num_sessions).tolist()]


def with_cold_lengths(
    cold: ColdPrompts | None,
    rng: np.random.Generator,
    lengths: list[int],
    is_cold: list[bool],
) -> list[int]:
    """Return the new tokens of each turn, with those of cold prompts in their places."""
    if cold is None or cold.prompt is None:
        return lengths
    cold_lengths = draw_lengths(cold.prompt, rng, len(lengths))
    return [
        cold_tokens if turn_is_cold else num_tokens
        for num_tokens, cold_tokens, turn_is_cold in zip(
            lengths, cold_lengths, is_cold, strict=True
        )
    ]
