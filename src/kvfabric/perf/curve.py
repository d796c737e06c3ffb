"""Measured times by one size: the smallest look-up table, in integer femtoseconds."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kvfabric.errors import ConfigError

FS_PER_US: Final = 1_000_000_000
FS_PER_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Curve:
    """Time in fs by a size; sizes ascend.

    Linear between measured sizes. Below the first its time holds, beyond the last the last line
    goes on.
    """

    sizes: tuple[int, ...]
    times_fs: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse sizes that do not ascend, and negative times."""
        if not self.sizes or len(self.sizes) != len(self.times_fs):
            raise ConfigError("a curve without one time per size", hint="Give at least one point")
        if any(b <= a for a, b in pairwise(self.sizes)) or min(self.times_fs) < 0:
            raise ConfigError(
                "a curve whose sizes do not ascend, or with a time below 0", hint="Sort its points"
            )

    def at(self, size: int) -> int:
        """Return the time at this size, rounded down to fs and never below 0."""
        sizes, times = self.sizes, self.times_fs
        if size <= sizes[0] or len(sizes) == 1:
            return times[0]
        i = min(bisect_right(sizes, size) - 1, len(sizes) - 2)
        rise, width = times[i + 1] - times[i], sizes[i + 1] - sizes[i]
        return max(0, times[i] + rise * (size - sizes[i]) // width)
