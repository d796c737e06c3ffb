"""Options of ``kvfabric step-times``; what it runs is imported inside, so that --help is fast."""

from pathlib import Path
from typing import Any

import click

from kvfabric.app.output_option import OUTPUT_FORMAT


@click.command("step-times")
@click.option("--model", required=True, help="Catalog name, or path to a config.json.")
@click.option("--gpu", required=True, help="Catalog name, such as h100-sxm-80gb.")
@click.option(
    "--tp", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs per worker."
)
@click.option("--kv-dtype", default="auto", show_default=True, help="auto, bf16, fp16, fp32, fp8.")
@click.option("--weight-dtype", default="auto", show_default=True, help="auto: as published.")
@click.option(
    "--aic-model",
    help="Model as aiconfigurator names it, or a folder with a config.json.  [default: the same]",
)
@click.option(
    "--system", help="GPU as aiconfigurator names it, such as gb200.  [default: the same]"
)
@click.option(
    "--backend",
    type=click.Choice(["vllm", "sglang", "trtllm"]),
    default="vllm",
    show_default=True,
    help="Engine whose kernels aiconfigurator measured.",
)
@click.option(
    "--experts",
    type=click.Choice(["tensor", "expert"]),
    default="tensor",
    show_default=True,
    help="Routed experts in aiconfigurator: cut across the GPUs, or whole on one each.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for aiconfigurator's step times, which perf kind step-times reads without it.",
)
@OUTPUT_FORMAT
def step_times(**options: Any) -> None:
    """Tell what steps of one worker take: by the roofline, and by aiconfigurator if installed.

    aiconfigurator-core adds up operators that were measured. Where it claims to be faster than
    nine tenths of what the GPU's data sheet allows, that is taken instead, and told.
    """
    from kvfabric.app.step_times_command import run_step_times

    click.echo(run_step_times(options), nl=False)
