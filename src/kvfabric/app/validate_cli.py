"""Options of ``kvfabric validate``.

Imports of what it runs are inside, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Final

import click

PARTS: Final = (
    "kv-cache",
    "prefix-cache",
    "vllm-runs",
    "closed-loop",
    "step-times",
    "hand-off",
    "max-min",
    "pfc",
    "all-to-all",
    "fabrics",
    "prices",
)


@click.command()
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    envvar="KVFABRIC_REFERENCE",
    help="Folder of reference data; recomputes the rest.  [default: $KVFABRIC_REFERENCE]",
)
@click.option(
    "--only",
    type=click.Choice(PARTS),
    multiple=True,
    help="One part, may be repeated.  [default: all]",
)
@click.option("--figures", is_flag=True, help="List every compared figure below its row.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)
def validate(
    reference: Path | None, only: tuple[str, ...], output_format: str, *, figures: bool
) -> None:
    """Recompute how far each part is from published measurements.

    What needs data that the package does not carry is shown as it was recorded, with the date.
    Exits with 1 when a row is worse than the limit its tests hold it to.
    """
    from kvfabric.app.validate_command import run_validate

    text, is_within = run_validate(
        reference=reference,
        only=only,
        output_format=output_format,
        with_figures=figures,
        tell=lambda line: click.echo(line, err=True),
    )
    click.echo(text, nl=False)
    if not is_within:
        sys.exit(1)
