"""The command line: reads, runs, prints, exits. stdout has the result, stderr everything else.

Each command with its options stands in ``plan_cli``, ``fabric_cli`` or ``engine_cli``.
"""

import os
import sys
import traceback

import click

from kvfabric import __version__
from kvfabric.app.claims_cli import claims
from kvfabric.app.engine_cli import generate, serve, worker
from kvfabric.app.fabric_cli import flows, topology
from kvfabric.app.plan_cli import plan, simulate, size
from kvfabric.app.search_cli import search
from kvfabric.app.step_times_cli import step_times
from kvfabric.app.validate_cli import validate
from kvfabric.errors import KvfabricError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Size, simulate and price the KV cache of an inference cluster and the fabric that carries it.

    Exit codes: 0 ok, 1 a finding (does not fit, can deadlock), 2 bad input, 3 internal error.
    """


for _command in (
    plan,
    claims,
    search,
    simulate,
    size,
    step_times,
    topology,
    flows,
    generate,
    serve,
    worker,
    validate,
):
    cli.add_command(_command)


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
