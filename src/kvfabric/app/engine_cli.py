"""Options of the commands that run a real model: ``generate`` and ``serve``.

Imports of what they run are inside them, so that ``--help`` answers at once.
"""

from pathlib import Path
from typing import Any

import click

from kvfabric.app.output_option import OUTPUT_FORMAT

_HANDOFF = click.option(
    "--handoff",
    type=click.Choice(["whole-prompt", "layer-wise"]),
    default="whole-prompt",
    show_default=True,
    help="Move KV cache after the prompt, or each layer group of a chunk once it is computed.",
)
_LAYER_GROUPS = click.option(
    "--layer-groups",
    type=click.IntRange(min=1, max=1024),
    default=8,
    show_default=True,
    help="Groups in which layers move, with --handoff layer-wise; no more than the model has.",
)


_KV_TRANSPORT = click.option(
    "--kv-transport",
    type=click.Choice(["auto", "shared", "sockets", "nixl", "mooncake"]),
    default="auto",
    show_default=True,
    help="How KV cache moves between workers: auto takes shared memory on one host, else sockets; "
    "nixl and mooncake need the extra of their name.",
)
_TOKEN = click.option(
    "--worker-token",
    envvar="KVFABRIC_WORKER_TOKEN",
    show_envvar=True,
    help="What control and workers of several hosts must both know, from 16 characters.",
)


@click.command()
@click.argument("prompts", metavar="PROMPT...", nargs=-1)
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="smollm2, a .gguf file, a folder with config.json and safetensors, or random:llama.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Most output tokens per prompt.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="0 takes the likeliest token.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Draw from the likeliest so many tokens; 0: all.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Draw from the likeliest tokens that have this probability together.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of sampling.")
@click.option("--stop", multiple=True, help="Text that ends the output, may be repeated.")
@click.option("--raw", is_flag=True, help="Go on from the prompt, without the chat template.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Of weights and computation.",
)
@click.option(
    "--kv-dtype", type=click.Choice(["int8"]), help="Of the KV cache.  [default: --dtype]"
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:0.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of torch, per worker.  [default: torch's choice]",
)
@click.option(
    "--kv-cache/--no-kv-cache",
    default=True,
    help="With no KV cache all tokens are computed again for each token.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Tokens per KV block.",
)
@click.option(
    "--kv-blocks",
    type=click.IntRange(min=2),
    help="Per worker, the null block included.  [default: what the prompts need]",
)
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
@_HANDOFF
@_LAYER_GROUPS
@_KV_TRANSPORT
@click.option(
    "--stream-kv", is_flag=True, help="As --handoff layer-wise --layer-groups 1: chunk by chunk."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that gets step times of this machine for simulate, instead of an answer.",
)
@OUTPUT_FORMAT
def generate(prompts: tuple[str, ...], record: Path | None, **options: Any) -> None:
    """Let a real model answer, and tell what its KV cache did.

    Several prompts run one after the other; what a later one shares with an earlier is found in
    the cache.
    """
    from kvfabric.app.generate_command import run_generate, run_record

    if record is not None:
        click.echo(run_record(record, options), nl=False)
        return
    if not prompts:
        raise click.UsageError("Missing argument 'PROMPT...'.")
    click.echo(run_generate(prompts, options), nl=False)


@click.command()
@click.option(
    "--model",
    required=True,
    help="smollm2, a .gguf file, a folder with config.json and safetensors, or random:llama.",
)
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
@click.option(
    "--workers-on",
    metavar="HOST:PORT",
    help="Wait there for workers to join from other hosts, and start none here; port 0: any.",
)
@_TOKEN
@_HANDOFF
@_LAYER_GROUPS
@_KV_TRANSPORT
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
    help="Of weights and computation.",
)
@click.option(
    "--kv-dtype", type=click.Choice(["int8"]), help="Of the KV cache.  [default: --dtype]"
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:0.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of torch, per worker.  [default: the cores, shared out]",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Tokens per KV block.",
)
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
@click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Most requests per step.",
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Most tokens per step.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    help="Most outputs that wait beyond those that run; more get 503 with Retry-After.",
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests have to finish when the server is told to end.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that gets the step times of the traffic at the end, for perf kind step-times.",
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


@click.command()
@click.option(
    "--join", required=True, metavar="HOST:PORT", help="Where serve --workers-on waits for workers."
)
@click.option(
    "--role",
    type=click.Choice(["prefill", "decode"]),
    required=True,
    help="What this worker does; prefill workers generate too where there are no decode workers.",
)
@click.option(
    "--model",
    required=True,
    help="The model of the cluster, as this host names it: smollm2, a .gguf file or a folder.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:0.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of torch.  [default: torch's choice]"
)
@click.option(
    "--data-address",
    metavar="HOST:PORT",
    help="Where other workers bring KV blocks.  [default: the address used to join, any port]",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    help="Times to try to join in a row.  [default: for ever]",
)
@_TOKEN
def worker(**options: Any) -> None:
    """Run one worker of a cluster whose control is on another host.

    Block size, KV blocks and dtype are the cluster's. It joins again when its connection is lost,
    and ends when the cluster does.
    """
    from kvfabric.engine.requirements import require_engine

    require_engine()
    from kvfabric.app.worker_command import run_worker

    run_worker(options)
