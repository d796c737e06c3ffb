"""The command line: reads, runs, prints, exits. stdout has the result, stderr everything else.

Imports of the commands are inside them, so that ``--help`` answers at once.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from kvfabric import __version__
from kvfabric.errors import KvfabricError

_FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Size, simulate and price the KV cache of an inference cluster and the fabric that carries it.

    Exit codes: 0 ok, 1 a finding (does not fit), 2 bad input, 3 internal error.
    """


@cli.command()
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
    help="Folder that gets plan.txt and plan.json as well.",
)
@_FORMAT
def plan(  # noqa: PLR0917 - click passes one argument per option
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
    """Compare fabrics for one model, load and GPU fleet.

    Without SCENARIO it runs the built-in one: Llama-3.1-70B, 100 users with 32,000-token contexts.
    """
    from kvfabric.app.plan_command import run_plan, show_plan
    from kvfabric.app.resolve import Overrides

    overrides = Overrides(trace=trace, speedup=speedup, limit=limit, seed=seed)
    if show:
        click.echo(show_plan(scenario, overrides), nl=False)
        return
    text = run_plan(scenario, overrides, output_format=output_format, out=out, jobs=jobs)
    click.echo(text, nl=False)


@cli.command()
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
    type=click.Choice(["ecmp", "spray", "assigned"]),
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
@_FORMAT
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


@cli.command()
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
@_FORMAT
def size(**options: object) -> None:
    """How much KV cache, how many blocks and GPUs, and does it fit.

    Exits with 1 when one user's context does not fit, and says by how much.
    """
    from kvfabric.app.size_command import run_size

    text, fits = run_size(options)
    click.echo(text, nl=False)
    if not fits:
        sys.exit(1)


@cli.command()
@click.option("--kind", required=True, help="clos, roft or zcube.")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="GPUs, one NIC each.")
@click.option(
    "--radix",
    type=click.IntRange(min=1),
    help="Ports per switch.  [default: of a 51.2 Tbit/s switch]",
)
@click.option("--port-rate", help="Rate of a switch port, such as '200 Gbit/s'.")
@click.option("--nic-rate", help="Rate of a GPU's NIC.  [default: its ports at the port rate]")
@click.option("--tiers", type=click.IntRange(min=1), help="Switch tiers.  [default: the fewest]")
@click.option("--oversubscription", type=float, default=1.0, show_default=True)
@_FORMAT
def topology(**options: object) -> None:
    """Build a fabric: switches, links, optics, path lengths, parts and price."""
    from kvfabric.app.topology_command import run_topology

    click.echo(run_topology(options), nl=False)


def main() -> None:
    """Run the command line; turn every error into one message and an exit code."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except KvfabricError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # the reader has gone; nothing more can be said on stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the last line before the user
        if os.environ.get("KVFABRIC_TRACEBACK"):
            traceback.print_exc()
        _fail(f"internal error: {error!r} (KVFABRIC_TRACEBACK=1 shows where)", 3)


def _fail(message: str, code: int) -> None:
    click.echo(f"kvfabric: {message}", err=True)
    sys.exit(code)
