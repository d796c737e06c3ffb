"""How designs look in every chart: color = fabric, dash and marker = load balancing."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.export.report.markup import Markup, el
from kvfabric.export.report.parts import sample
from kvfabric.plan.compare import Comparison, DesignResult

_DASHES = ("", "7 4", "2 3", "10 3 2 3")
NUM_COLORS = 6


@dataclass(frozen=True, slots=True)
class Look:
    """Color class and pattern of one design; both differ where designs do."""

    color: int
    pattern: int

    @property
    def css(self) -> str:
        """Return the class that carries the color."""
        return f"c{self.color}"

    @property
    def dash(self) -> str | None:
        """Return the dashes of its line."""
        return _DASHES[self.pattern % len(_DASHES)] or None

    def line_sample(self) -> Markup:
        """Return a short piece of its line."""
        return sample(
            el("path", class_=f"line {self.css}", d="M1 7H27", stroke_dasharray=self.dash)
        )

    def marker(self, x: float, y: float) -> Markup:
        """Return its marker at a place."""
        return marker(self.pattern, x, y, f"dot {self.css}")


def marker(shape: int, x: float, y: float, css: str) -> Markup:
    """Return a filled circle, or around it an open square, diamond or triangle.

    So designs that fall on each other can all be seen.
    """
    match shape % 4:
        case 0:
            return el("circle", class_=css, cx=x, cy=y, r=4)
        case 1:
            return el("rect", class_=f"{css} open", x=x - 6.5, y=y - 6.5, width=13, height=13)
        case 2:
            diamond = f"M{x:.1f} {y - 11:.1f}l11 11l-11 11l-11 -11z"
            return el("path", class_=f"{css} open", d=diamond)
        case _:
            return el("path", class_=f"{css} open", d=f"M{x:.1f} {y - 14:.1f}l13 22h-26z")


def all_designs(comparison: Comparison) -> list[DesignResult]:
    """Return every design, the aggregated fleet last."""
    extra = [] if comparison.aggregated is None else [comparison.aggregated]
    return [*comparison.designs, *extra]


def looks(comparison: Comparison) -> dict[str, Look]:
    """Return the look of every design by its name."""
    found: dict[str, Look] = {}
    fabrics = list(labels(comparison.designs))
    policies = list(dict.fromkeys(design.load_balancing for design in comparison.designs))
    for design in comparison.designs:
        assert design.fabric is not None
        color = fabrics.index(design.fabric.label) % NUM_COLORS
        found[design.name] = Look(color + 1, policies.index(design.load_balancing))
    if comparison.aggregated is not None:
        found[comparison.aggregated.name] = Look(0, 3)
    return found


def labels(designs: Sequence[DesignResult]) -> list[str]:
    """Return the fabrics of designs, each once, in order."""
    return list(dict.fromkeys(d.fabric.label for d in designs if d.fabric is not None))
