"""Options of ``kvfabric claims``. Imports of what it runs are inside, so that help is quick."""

from pathlib import Path

import click

from kvfabric.app.output_option import OUTPUT_FORMAT


@click.command()
@click.option("--full", is_flag=True, help="The whole sweep: hours instead of minutes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets claims.txt, claims.json and claims.parquet, and keeps finished runs: "
    "an interrupted sweep goes on from there.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Runs simulated at once.  [default: all cores]"
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Added to the seeds of the sweep.",
)
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    is_flag=False,
    flag_value="",
    help="Run on a Ray cluster; without ADDRESS on the one found, or a new local one.",
)
@click.option("--tiny", is_flag=True, help="A few runs of 64 GPUs, to try a set-up; no evidence.")
@OUTPUT_FORMAT
def claims(
    out: Path | None,
    jobs: int | None,
    seed: int,
    ray_address: str | None,
    output_format: str,
    *,
    full: bool,
    tiny: bool,
) -> None:
    """Put the published claims for a flattened fabric to the test.

    Rebuilds the comparison of a rail-optimised fat-tree with ZCube on about 1,000 GPUs and says per
    claim: reproduced, only under these conditions, not reproduced, or not tested.
    """
    from kvfabric.app.claims_command import ClaimsOptions, run_claims

    extent = "tiny" if tiny else "full" if full else "quick"
    options = ClaimsOptions(extent=extent, out=out, jobs=jobs, seed=seed, ray_address=ray_address)
    click.echo(run_claims(options, output_format=output_format), nl=False)
