"""The options that say how a fabric is priced, cabled and put into racks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

CABLE_RULES = ("planned", "placed", "placed-aoc")

_OPTIONS = (
    click.option(
        "--prices",
        type=click.Path(path_type=Path),
        help="YAML file with prices of your own.  [default: the public price book]",
    ),
    click.option(
        "--cables",
        type=click.Choice(CABLE_RULES),
        default="planned",
        show_default=True,
        help="Copper or fibre as published for the kind, or by length in the racks.",
    ),
    click.option(
        "--rack-units",
        type=click.IntRange(min=1, max=100),
        default=42,
        show_default=True,
        help="Usable height of a rack.",
    ),
    click.option(
        "--rack-power",
        type=click.FloatRange(min=0, min_open=True),
        default=45.0,
        show_default=True,
        help="Power of a rack in kW.",
    ),
    click.option(
        "--server-units",
        type=click.IntRange(min=1, max=100),
        help="Height of a server in rack units.  [default: 1 per GPU]",
    ),
    click.option(
        "--server-power",
        type=click.FloatRange(min=0, min_open=True),
        help="Power of a server in kW.  [default: 1.275 per GPU]",
    ),
    click.option(
        "--racks-per-row",
        type=click.IntRange(min=1, max=1000),
        default=20,
        show_default=True,
        help="Racks side by side, about.",
    ),
)

FLAGS: Mapping[str, str] = {
    "racks": "--racks-per-row",
    "racks.rack_power": "--rack-power",
    "racks.rack_units": "--rack-units",
    "racks.server_units": "--server-units",
}


def rack_options(command: _Command) -> _Command:
    """Add what decides price, cables and racks."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
