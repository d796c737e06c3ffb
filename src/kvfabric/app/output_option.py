"""How a command prints its result: an option of nearly all of them."""

import click

OUTPUT_FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)
