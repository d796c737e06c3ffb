"""Options of the commands about a fabric alone: ``topology`` and ``flows``.

Imports of what they run are inside them, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path

import click

from kvfabric.app.fabric_options import POLICY_NAMES, fabric_options
from kvfabric.app.output_option import OUTPUT_FORMAT
from kvfabric.app.rack_options import rack_options


@click.command()
@fabric_options
@click.option(
    "--fail",
    multiple=True,
    metavar="WHAT",
    help="What has failed, may be repeated: 'switch:leaf 3', 'link:leaf 3 - spine 1', "
    "'port:GPU 17 port 0', 'plane:1'.",
)
@click.option(
    "--load-balancing",
    type=click.Choice(POLICY_NAMES),
    default="ecmp",
    show_default=True,
    help="Whose paths are checked for deadlocks.",
)
@click.option(
    "--priority-hops",
    metavar="HOPS",
    help="Hops from which on the next lossless priority is used, such as 2 or 2,3.  "
    "[default: one priority]",
)
@rack_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets bom.csv, wiring.csv, wiring.xlsx and topology.json.",
)
@OUTPUT_FORMAT
def topology(**options: object) -> None:
    """Build a fabric: switches, links, optics, path lengths, bisection, deadlocks, parts, price.

    A size that cannot be built is refused with the nearest ones that can. Exits with 1 when
    priority flow control could lock the fabric up on the paths it uses.
    """
    from kvfabric.app.topology_command import run_topology

    text, is_deadlock_free = run_topology(options)
    click.echo(text, nl=False)
    if not is_deadlock_free:
        sys.exit(1)


@click.command()
@click.argument("flows_csv", metavar="FLOWS.CSV", type=click.Path(path_type=Path))
@fabric_options
@click.option(
    "--engine",
    type=click.Choice(["max-min", "pfc", "pfc-stepped"]),
    default="max-min",
    show_default=True,
    help="How flows share links.",
)
@click.option(
    "--load-balancing",
    type=click.Choice(POLICY_NAMES),
    default="ecmp",
    show_default=True,
    help="Paths of flows that name none.",
)
@click.option(
    "--queue-pairs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Connections per NIC port and flow under ecmp.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the switches' hash functions.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File that gets a row per flow with its completion time.",
)
@OUTPUT_FORMAT
def flows(flows_csv: Path, **options: object) -> None:
    """Run a list of flows over a fabric and tell when each one ends.

    FLOWS.CSV has the columns id,src,dst,start_us,bytes and, if wanted, path: the switches between
    the two GPUs, such as 'leaf-0 spine-2 leaf-5'.
    """
    from kvfabric.app.flows_command import run_flows_command

    click.echo(run_flows_command(flows_csv, options), nl=False)
