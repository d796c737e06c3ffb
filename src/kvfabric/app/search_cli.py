"""Options of ``kvfabric search``."""

import sys
from pathlib import Path

import click

from kvfabric.app.output_option import OUTPUT_FORMAT


@click.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Trace file instead of the scenario's load."
)
@click.option("--speedup", type=float, help="Compress the time of the trace by this factor.")
@click.option("--limit", type=click.IntRange(min=1), help="First so many requests of the trace.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of everything random.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Designs simulated at once.  [default: all cores]"
)
@click.option("--show", is_flag=True, help="Print the scenario with the origin of each value.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets search.txt, search.json and winner.yaml.",
)
@OUTPUT_FORMAT
def search(  # noqa: PLR0917 - click passes one argument per option
    scenario: Path | None,
    trace: Path | None,
    speedup: float | None,
    limit: int | None,
    seed: int | None,
    out: Path | None,
    jobs: int | None,
    output_format: str,
    *,
    show: bool,
) -> None:
    """Find the cheapest design that meets the targets at the given load.

    Varies GPUs, workers, their split into prefill and decode, and the fabric. Without SCENARIO it
    searches around the built-in one. Exits with 1 when no design meets the targets.
    """
    from kvfabric.app.resolve import Overrides
    from kvfabric.app.search_command import run_search, show_search

    overrides = Overrides(trace=trace, speedup=speedup, limit=limit, seed=seed)
    if show:
        click.echo(show_search(scenario, overrides), nl=False)
        return
    text, has_winner = run_search(
        scenario, overrides, output_format=output_format, out=out, jobs=jobs
    )
    click.echo(text, nl=False)
    if not has_winner:
        sys.exit(1)
