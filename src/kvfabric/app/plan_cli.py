"""Options of the commands about a cluster: ``plan``, ``simulate`` and ``size``.

Imports of what they run are inside them, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Any

import click

from kvfabric.app.fabric_options import POLICY_NAMES
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
    help="Folder that gets plan.txt, plan.json, report.html, and parts and wiring lists.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="File that gets the report as one HTML page that needs nothing else.",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Price book (YAML) with your own prices.",
)
@OUTPUT_FORMAT
def plan(  # noqa: PLR0917 - click passes one argument per option
    scenario: Path | None,
    trace: Path | None,
    speedup: float | None,
    limit: int | None,
    seed: int | None,
    out: Path | None,
    html: Path | None,
    prices: Path | None,
    jobs: int | None,
    output_format: str,
    *,
    show: bool,
) -> None:
    """Compare fabrics for one model, load and GPU fleet.

    Without SCENARIO it runs the built-in one: Llama-3.1-70B, 100 users with 32,000-token contexts.
    Exits with 1 when priority flow control could lock one of the fabrics up.
    """
    from kvfabric.app.plan_command import PlanFiles, run_plan, show_plan
    from kvfabric.app.resolve import Overrides

    overrides = Overrides(trace=trace, speedup=speedup, limit=limit, seed=seed)
    if show:
        click.echo(show_plan(scenario, overrides, prices=prices), nl=False)
        return
    files = PlanFiles(out=out, html=html)
    text, is_deadlock_free = run_plan(
        scenario, overrides, output_format=output_format, files=files, prices=prices, jobs=jobs
    )
    click.echo(text, nl=False)
    if not is_deadlock_free:
        sys.exit(1)


@click.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Trace file instead of the scenario's load."
)
@click.option("--profile", type=click.Path(path_type=Path), help="Folder of an operator profile.")
@click.option("--speedup", type=float, help="Compress the time of the trace by this factor.")
@click.option("--limit", type=click.IntRange(min=1), help="First so many requests of the trace.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of everything random.")
@click.option("--fabric", help="Label of the fabric.  [default: the scenario's first]")
@click.option(
    "--load-balancing",
    type=click.Choice(POLICY_NAMES),
    help="Policy on the fabric.  [default: the scenario's first]",
)
@click.option(
    "--window", help="Requests of a second comparison with a recorded run, such as 3:110."
)
@click.option("--show", is_flag=True, help="Print the scenario with the origin of each value.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets every request's result and more.",
)
@OUTPUT_FORMAT
def simulate(**options: Any) -> None:
    """Run one load on one design and tell what its requests went through.

    Without SCENARIO it runs the built-in one. A recorded run of a real engine as the trace is
    compared with the simulation.
    """
    from kvfabric.app.resolve import Overrides
    from kvfabric.app.simulate_command import parse_window, run_simulate, show_simulate

    scenario: Path | None = options["scenario"]
    names = ("trace", "profile", "speedup", "limit", "seed")
    overrides = Overrides(**{name: options[name] for name in names})
    window = parse_window(options["window"])
    if options["show"]:
        click.echo(show_simulate(scenario, overrides), nl=False)
        return
    text = run_simulate(
        scenario,
        overrides,
        output_format=options["output_format"],
        out=options["out"],
        fabric=options["fabric"],
        load_balancing=options["load_balancing"],
        window=window,
    )
    click.echo(text, nl=False)


@click.command()
@click.option("--model", required=True, help="Catalog name, or path to a config.json.")
@click.option("--gpu", required=True, help="Catalog name, such as h100-sxm-80gb.")
@click.option("--users", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    help="Tokens per user, prompt and output.  [default: --max-model-len]",
)
@click.option("--tp", type=click.IntRange(min=1), help="GPUs per worker.  [default: smallest fit]")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--kv-dtype", default="auto", show_default=True, help="auto, bf16, fp16, fp32, fp8.")
@click.option("--weight-dtype", default="auto", show_default=True, help="auto: as published.")
@click.option("--block-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--max-model-len", type=click.IntRange(min=1), help="Longest request, in tokens.")
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(min=1), default=8192, show_default=True
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option("--gpu-memory-utilization", type=float, default=0.9, show_default=True)
@click.option(
    "--kv-memory-gib", type=float, help="KV memory per GPU in GiB, as the engine's log says."
)
@OUTPUT_FORMAT
def size(**options: object) -> None:
    """How much KV cache, how many blocks and GPUs, and does it fit.

    Exits with 1 when one user's context does not fit, and says by how much.
    """
    from kvfabric.app.size_command import run_size

    text, fits = run_size(options)
    click.echo(text, nl=False)
    if not fits:
        sys.exit(1)
