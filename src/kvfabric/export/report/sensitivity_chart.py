"""Which prices decide: what the three most important ones do to each total, and to the ranking."""

from collections.abc import Iterator
from itertools import pairwise

from kvfabric.export.report.comparison_tables import fabrics_of
from kvfabric.export.report.cost_chart import usd_axis
from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import bullets, chart, figure, scroll
from kvfabric.export.report.parts_list import part_name
from kvfabric.export.report.scales import Frame, Scale, from_zero, x_axis
from kvfabric.export.report.words import usd
from kvfabric.plan.bom import BillOfMaterials
from kvfabric.plan.compare import Comparison
from kvfabric.plan.price_sensitivity import (
    PriceDifference,
    PriceSwing,
    price_difference,
    price_swings,
)

NUM_PRICES = 3

_WIDTH, _LEFT, _STEP, _BLOCK = 720.0, 150.0, 21.0, 92.0


def sensitivity_figure(comparison: Comparison) -> Markup:
    """Return the swings of the prices that matter most, and whether they turn the ranking."""
    boms = {label: fabric.bom for label, fabric in fabrics_of(comparison).items()}
    swings = {label: price_swings(bom)[:NUM_PRICES] for label, bom in boms.items()}
    highest = max(swing.high_usd for own in swings.values() for swing in own)
    height = len(boms) * _BLOCK + 60
    x = from_zero(highest, _LEFT, _WIDTH - 30)
    show, unit = usd_axis(x.high)
    frame = Frame(x, Scale(0, 1, height - 50, 6))
    drawing = chart(
        "sensitivity",
        "The prices that matter most for the total of each fabric",
        _description(boms, swings),
        (_WIDTH, height),
        x_axis(frame, f"Price of the fabric, NICs included ({unit})", show),
        *(
            _block(label, boms[label], own, x, 8 + place * _BLOCK)
            for place, (label, own) in enumerate(swings.items())
        ),
    )
    caption = (
        "Each bar: the total with that one price at its low and at its high end, all others"
        " typical. The upright line is the total at typical prices."
    )
    return join(figure(caption, scroll(drawing)), _ranking(boms))


def _block(
    label: str, bom: BillOfMaterials, swings: tuple[PriceSwing, ...], x: Scale, top: float
) -> Markup:
    parts = [el("text", label, class_="name", x=_LEFT, y=top + 13)]
    names = _names(bom)
    for place, swing in enumerate(swings):
        y = top + 20 + place * _STEP
        low, high = x.at(swing.low_usd), x.at(swing.high_usd)
        words = (
            f"{names[swing.key]}, {swing.count:,} pieces at ${usd(swing.price.low_usd)} to"
            f" ${usd(swing.price.high_usd)}: total ${usd(swing.low_usd)} to ${usd(swing.high_usd)}"
        )
        parts.append(
            el("text", names[swing.key], class_="tick", x=_LEFT - 10, y=y + 12, text_anchor="end")
        )
        parts.append(
            el(
                "rect",
                el("title", words),
                class_="swing",
                x=low,
                y=y,
                width=max(high - low, 1.0),
                height=15,
            )
        )
    at = x.at(bom.cost().typical_usd)
    end = top + 17 + len(swings) * _STEP
    parts.append(el("line", class_="typical-total", x1=at, x2=at, y1=top + 17, y2=end))
    return el("g", *parts)


def _ranking(boms: dict[str, BillOfMaterials]) -> Markup | None:
    """Return for neighbors in price whether prices within their ranges turn the order round."""
    by_price = sorted(boms.items(), key=lambda item: (item[1].cost().typical_usd, item[0]))
    sentences = [
        _sentence(
            dear,
            cheap,
            price_difference(dear_bom, cheap_bom),
            {**_names(cheap_bom), **_names(dear_bom)},
        )
        for (cheap, cheap_bom), (dear, dear_bom) in pairwise(by_price)
    ]
    return bullets(sentences) if sentences else None


def _sentence(dear: str, cheap: str, found: PriceDifference, names: dict[str, str]) -> str:
    amount = found.range
    text = (
        f"{dear} costs ${usd(amount.typical_usd)} more than {cheap} at typical prices; within the"
        f" ranges the difference is {_money(amount.low_usd)} to {_money(amount.high_usd)}, as both"
        " are bought at the same prices."
    )
    if not amount.typical_usd:
        return f"{dear} and {cheap} cost the same at typical prices."
    if found.is_settled:
        return f"{text} No combination of prices turns that round."
    turning = ", ".join(_turning(found, names))
    if turning:
        return f"{text} Each of these prices turns that round alone: {turning}."
    return f"{text} No single price turns that round, several together do."


def _turning(found: PriceDifference, names: dict[str, str]) -> Iterator[str]:
    swings = {swing.key: swing for swing in found.swings}
    for key, at_usd in found.turning_prices()[:NUM_PRICES]:
        side = "above" if at_usd > swings[key].price.typical_usd else "below"
        yield f"{names.get(key, key)} {side} ${usd(at_usd)}"


def _names(bom: BillOfMaterials) -> dict[str, str]:
    """Return what a price is of, by its key in the price book."""
    return {line.priced_as: part_name(line) for line in reversed(bom.lines)}


def _money(amount: float) -> str:
    return f"-${usd(-amount)}" if amount < 0 else f"${usd(amount)}"


def _description(
    boms: dict[str, BillOfMaterials], swings: dict[str, tuple[PriceSwing, ...]]
) -> str:
    parts = (
        f"{label}: "
        + ", ".join(
            f"{_names(boms[label])[s.key]} moves the total by ${usd(s.swing_usd)}" for s in own
        )
        for label, own in swings.items()
    )
    return "; ".join(parts) + "."
