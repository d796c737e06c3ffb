"""One comparison with published figures: what is compared, how, and how far off it may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.plan.validation.reference import ReferenceData


class Role(Enum):
    """Whether the compared figures chose a constant of the model."""

    HELD_OUT = "held out"
    CALIBRATED = "calibrated"
    LAW = "law"
    """An exact answer that follows from arithmetic, not a measurement."""


class Unit(Enum):
    """How an error is counted: ours over published, minus 1, or ours minus published."""

    RELATIVE = "%"
    GIB = "GiB"
    POINTS = "points"
    """Percentage points of a figure that is itself in percent."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure and ours, in the same unit.

    Attributes:
        name: what it is, with its unit where it has one.
        published: as printed by the source.
        ours: what this version says; in a record, what it said then.
    """

    name: str
    published: float
    ours: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of all figures of one comparison, as fractions or in the unit of the comparison.

    Attributes:
        num: figures compared.
        mean: mean of the errors without their signs.
        lowest: most negative error, or least positive where all are.
        highest: most positive error, or least negative.
    """

    num: int
    mean: float
    lowest: float
    highest: float

    @property
    def worst(self) -> float:
        """Return the error farthest from 0, with its sign."""
        return max((self.lowest, self.highest), key=abs)


@dataclass(frozen=True, slots=True)
class Limit:
    """What the tests hold a comparison to: a little above what was recorded."""

    mean: float
    worst: float


@dataclass(frozen=True, slots=True)
class Record:
    """What a comparison gave when it was last recomputed with the reference data at hand.

    Attributes:
        date: ISO date of that run.
        errors: of all figures.
        figures: one by one; empty where they are too many to carry.
    """

    date: str
    errors: Errors
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One row of the table.

    Exactly one of ``recompute`` and ``recompute_from`` is set; with the second come ``needs`` and
    ``record``.

    Attributes:
        part: which part of the model, such as ``kv-cache``; rows of one part stand together.
        what: the compared figures.
        source: who published them, in short.
        role: held out, calibrated or law.
        unit: of the errors.
        limit: largest errors allowed.
        recompute: gives the figures from what the package carries.
        recompute_from: gives them from the reference data.
        needs: what of the reference data it reads, as paths in its folder.
        record: what was found when that data was at hand.
    """

    part: str
    what: str
    source: str
    role: Role
    limit: Limit
    unit: Unit = Unit.RELATIVE
    recompute: Callable[[], Sequence[Figure]] | None = None
    recompute_from: Callable[[ReferenceData], Sequence[Figure]] | None = None
    needs: tuple[str, ...] = ()
    record: Record | None = None

    def __post_init__(self) -> None:
        """State what only our own table can break."""
        is_carried = self.recompute is not None
        assert is_carried == (self.recompute_from is None), self.what
        assert is_carried == (self.record is None), self.what
        assert is_carried == (not self.needs), self.what


@dataclass(frozen=True, slots=True)
class Row:
    """A comparison and its errors: recomputed now, or as recorded where the data is not at hand."""

    comparison: Comparison
    errors: Errors
    figures: tuple[Figure, ...]
    is_recomputed: bool

    @property
    def is_within(self) -> bool:
        """Return whether neither error is beyond its limit."""
        limit = self.comparison.limit
        return self.errors.mean <= limit.mean and abs(self.errors.worst) <= limit.worst


def error_of(figure: Figure, unit: Unit) -> float:
    """Return the error of one figure: a fraction for ``RELATIVE``, else in the unit itself.

    Of a published 0, anything but 0 is infinitely far.
    """
    if unit is not Unit.RELATIVE:
        return figure.ours - figure.published
    if figure.published == 0:
        return 0.0 if figure.ours == 0 else float("inf")
    return figure.ours / figure.published - 1


def errors_of(figures: Sequence[Figure], unit: Unit) -> Errors:
    """Return the errors of figures, of which there is at least one."""
    errors = [error_of(figure, unit) for figure in figures]
    mean = sum(map(abs, errors)) / len(errors)
    return Errors(len(errors), mean, min(errors), max(errors))


def run_comparison(comparison: Comparison, reference: ReferenceData | None) -> Row:
    """Return the row of one comparison, recomputed if what it needs is at hand."""
    if comparison.recompute is not None:
        return _recomputed(comparison, comparison.recompute())
    assert comparison.recompute_from is not None
    assert comparison.record is not None
    if reference is not None and not reference.missing(comparison.needs):
        return _recomputed(comparison, comparison.recompute_from(reference))
    record = comparison.record
    return Row(comparison, record.errors, record.figures, is_recomputed=False)


def _recomputed(comparison: Comparison, figures: Sequence[Figure]) -> Row:
    return Row(comparison, errors_of(figures, comparison.unit), tuple(figures), is_recomputed=True)
