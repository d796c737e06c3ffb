"""The options that name a fabric, and the names of the load-balancing policies."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

POLICY_NAMES = (
    "ecmp",
    "flowlet",
    "spray",
    "dmodk",
    "path-source",
    "path-destination",
    "assigned",
)

_FABRIC = (
    click.option(
        "--kind",
        required=True,
        help="clos, roft, rail-only, multi-plane, hpn, zcube, zcube-recursive, bcube, dragonfly, "
        "slim-fly or jellyfish.",
    ),
    click.option("--gpus", type=click.IntRange(min=1), required=True, help="GPUs, one NIC each."),
    click.option(
        "--radix",
        type=click.IntRange(min=1),
        help="Ports per switch.  [default: of a 51.2 Tbit/s switch]",
    ),
    click.option("--port-rate", help="Rate of a switch port, such as '200 Gbit/s'."),
    click.option("--nic-rate", help="Rate of a GPU's NIC.  [default: its ports at the port rate]"),
    click.option(
        "--tiers", type=click.IntRange(min=1), help="Switch tiers.  [default: the fewest]"
    ),
    click.option(
        "--oversubscription",
        type=float,
        default=1.0,
        show_default=True,
        help="Downlink over uplink capacity of a leaf.",
    ),
    click.option(
        "--gpus-per-server",
        type=click.IntRange(min=1),
        default=8,
        show_default=True,
        help="GPUs of one scale-up domain.",
    ),
    click.option(
        "--shape",
        help="Sizes that the kind alone has, such as 'planes=8' or 'uplinks=60,core_uplinks=8'.",
    ),
)


def fabric_options(command: _Command) -> _Command:
    """Add what names a fabric."""
    for option in reversed(_FABRIC):
        command = option(command)
    return command
