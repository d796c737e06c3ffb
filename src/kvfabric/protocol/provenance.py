"""Where a number comes from: every catalog entry and estimate carries one ``Source``."""

from dataclasses import dataclass
from enum import Enum


class SourceKind(Enum):
    """How far a number can be trusted, strongest first."""

    MEASURED = "measured"
    DATASHEET = "datasheet"
    PUBLISHED = "published"
    DERIVED = "derived"
    ASSUMED = "assumed"
    GIVEN = "given"  # by the user, who knows how far


@dataclass(frozen=True, slots=True)
class Source:
    """One origin: what kind it is, what exactly was read, and when (ISO date or empty)."""

    kind: SourceKind
    text: str
    date: str = ""

    def __str__(self) -> str:
        """Return ``kind: text (date)``."""
        return f"{self.kind.value}: {self.text}" + (f" ({self.date})" if self.date else "")
