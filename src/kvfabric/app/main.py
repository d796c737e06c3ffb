"""The command line: reads, runs, prints, exits. stdout has the result, stderr everything else.

Imports of the commands are inside them, so that ``--help`` answers at once.
"""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvfabric import __version__
from kvfabric.errors import KvfabricError

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

_FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
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


def _fabric_options(command: _Command) -> _Command:
    """Add what names a fabric."""
    for option in reversed(_FABRIC):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Size, simulate and price the KV cache of an inference cluster and the fabric that carries it.

    Exit codes: 0 ok, 1 a finding (does not fit, can deadlock), 2 bad input, 3 internal error.
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
    Exits with 1 when priority flow control could lock one of the fabrics up.
    """
    from kvfabric.app.plan_command import run_plan, show_plan
    from kvfabric.app.resolve import Overrides

    overrides = Overrides(trace=trace, speedup=speedup, limit=limit, seed=seed)
    if show:
        click.echo(show_plan(scenario, overrides), nl=False)
        return
    text, is_deadlock_free = run_plan(
        scenario, overrides, output_format=output_format, out=out, jobs=jobs
    )
    click.echo(text, nl=False)
    if not is_deadlock_free:
        sys.exit(1)


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
@_fabric_options
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
@_FORMAT
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


@cli.command()
@click.argument("flows_csv", metavar="FLOWS.CSV", type=click.Path(path_type=Path))
@_fabric_options
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
@_FORMAT
def flows(flows_csv: Path, **options: object) -> None:
    """Run a list of flows over a fabric and tell when each one ends.

    FLOWS.CSV has the columns id,src,dst,start_us,bytes and, if wanted, path: the switches between
    the two GPUs, such as 'leaf-0 spine-2 leaf-5'.
    """
    from kvfabric.app.flows_command import run_flows_command

    click.echo(run_flows_command(flows_csv, options), nl=False)


@cli.command()
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="smollm2, a .gguf file, a folder with config.json and safetensors, or random:llama.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="0 takes the likeliest token.",
)
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Likeliest so many; 0: all.")
@click.option(
    "--top-p", type=click.FloatRange(min=0, max=1, min_open=True), default=1.0, show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of sampling.")
@click.option("--stop", multiple=True, help="Text that ends the output; may be given again.")
@click.option("--raw", is_flag=True, help="Go on from the prompt, without the chat template.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
)
@click.option("--kv-dtype", type=click.Choice(["int8"]), help="Of the cache.  [default: --dtype]")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--threads", type=click.IntRange(min=1), help="Of torch, per worker.")
@click.option("--kv-cache/--no-kv-cache", default=True, help="Or compute all tokens every time.")
@click.option("--block-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--kv-blocks", type=click.IntRange(min=2), help="Per worker.  [default: as needed]")
@click.option("--prefill", type=click.IntRange(min=1), default=1, help="Workers for prompts.")
@click.option(
    "--decode",
    type=click.IntRange(min=0),
    default=0,
    help="Workers that only decode; with one or more, every worker is a process.",
)
@click.option("--stream-kv", is_flag=True, help="Move KV cache while the prompt is computed.")
@_FORMAT
def generate(prompts: tuple[str, ...], **options: Any) -> None:
    """Let a real model answer, and tell what its KV cache did.

    Several prompts run one after the other; what a later one shares with an earlier is found in
    the cache.
    """
    from kvfabric.app.generate_command import run_generate

    click.echo(run_generate(prompts, options), nl=False)


@cli.command()
@click.option("--model", required=True, help="smollm2, a .gguf file, or a model's directory.")
@click.option("--served-model-name", help="What clients call it.  [default: --model]")
@click.option(
    "--prefill",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Workers that compute prompts, and generate too without --decode.",
)
@click.option(
    "--decode",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Workers that only generate.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=8000,
    show_default=True,
    help="0: any that is free.",
)
@click.option(
    "--api-key",
    envvar="KVFABRIC_API_KEY",
    show_envvar=True,
    help="What clients must send as a bearer token.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
)
@click.option("--kv-dtype", type=click.Choice(["int8"]), help="[default: --dtype]")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:0.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Per worker.  [default: the cores, shared out]"
)
@click.option("--block-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--kv-blocks", type=click.IntRange(min=2), help="Per worker; instead of --kv-memory-gib."
)
@click.option(
    "--kv-memory-gib",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="KV memory per worker, in GiB.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=2),
    help="Longest request, prompt and output, in tokens.  [default: what model and KV memory take]",
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(min=1), default=2048, show_default=True
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests have to finish when the server is told to end.",
)
def serve(**options: Any) -> None:
    """Serve a model with an OpenAI-compatible API, on this machine's workers.

    Paths: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics (Prometheus).
    Progress goes to stderr. SIGINT and SIGTERM end it in good order.
    """
    from kvfabric.engine.requirements import require_engine, require_server

    require_engine()
    require_server()
    from kvfabric.app.serve_command import run_serve

    run_serve(options)


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
