"""``kvfabric flows``: a list of flows and a fabric in, completion times out."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvfabric.app.flags import told_by_flag
from kvfabric.app.layout import fold, ms, table
from kvfabric.app.topology_command import topology_of
from kvfabric.errors import ConfigError
from kvfabric.export.flows_csv import flows_csv
from kvfabric.export.flows_json import flow_run_to_dict
from kvfabric.fabric.engines.choice import check_engine_takes, make_engine
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.fabric.routes.named_paths import PathNames
from kvfabric.plan.flow_run import FlowRun, run_flows
from kvfabric.units import format_bytes
from kvfabric.workload.flows_csv import FlowRow, read_flows

_FLAGS = {"fabric.load_balancing": "--load-balancing", "fabric.queue_pairs": "--queue-pairs"}


def run_flows_command(path: Path, options: Mapping[str, Any]) -> str:
    """Return what the command prints; with ``--out`` also write a row per flow.

    Raises:
        ConfigError: names the flag, or the line of the file, and what to write instead.
    """
    out: Path | None = options["out"]
    _check_out(out)
    topology = topology_of(options)
    flows = read_flows(path, topology.num_gpus)
    paths = _paths(path, topology, flows)
    with told_by_flag(_FLAGS):
        balancer = make_load_balancer(
            options["load_balancing"],
            topology,
            queue_pairs=options["queue_pairs"],
            seed=options["seed"],
        )
        check_engine_takes(options["engine"], balancer)
    engine = make_engine(options["engine"], balancer.channel_capacity_bps)
    run = run_flows(topology, balancer, engine, flows, paths)
    report = flow_run_to_dict(
        run, fabric=topology.name, load_balancing=balancer.name, engine=options["engine"]
    )
    if out is not None:
        _write(out, flows_csv(run))
    if options["output_format"] == "json":
        return json.dumps(report, indent=2) + "\n"
    return "\n".join(_lines(run, report)) + "\n"


def _paths(path: Path, topology: Topology, flows: Sequence[FlowRow]) -> dict[str, tuple[int, ...]]:
    names = PathNames(topology)
    found: dict[str, tuple[int, ...]] = {}
    for flow in flows:
        if not flow.path:
            continue
        try:
            found[flow.flow_id] = names.channels(flow.src, flow.path, flow.dst)
        except ConfigError as error:
            raise ConfigError(
                f"{error.what} (flow {flow.flow_id!r})",
                where=f"{path}: line {flow.line}",
                hint=error.hint,
            ) from None
    return found


def _lines(run: FlowRun, report: Mapping[str, Any]) -> list[str]:
    within = report["num_within_servers"]
    lines = [
        f"{report['num_flows']:,} flows on {report['fabric']}, {report['load_balancing']},"
        f" engine {report['engine']}: {format_bytes(report['num_bytes'])} in"
        f" {ms(run.window_ns)} ms over {report['num_subflows']:,} paths"
        + (f"; {within:,} within servers, at once" if within else ""),
        "",
    ]
    slowdown = report["slowdown"]
    if slowdown is not None:
        fct = report["fct"]
        times = [fct["mean_ns"], fct["p50_ns"], fct["p99_ns"], report["fct_max_ns"]]
        rows = [
            ["completion time, ms", *(f"{ns / 1e6:,.4f}" for ns in times)],
            ["over line rate", *(f"{slowdown[key]:.3f}" for key in ("mean", "p50", "p99", "max"))],
        ]
        title = "Completion times (over line rate: against the flow alone at its NIC's rate)"
        lines.append(table(title, ("", "mean", "p50", "p99", "max"), rows))
    links = [
        [link.name, f"{link.utilization:.1%}", format_bytes(link.carried_bytes)]
        for link in run.busiest_links
    ]
    if links:
        lines.append(table("Busiest links", ("link", "used", "carried"), links))
    if run.pressure is not None:
        lines.append(fold(f"Back-pressure: {run.pressure.sentence()}"))
    return lines


def _check_out(out: Path | None) -> None:
    """Refuse, before the run, a file that cannot be written."""
    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"{out} is a folder", where="--out", hint="Name a file")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}", where="--out", hint="Make it, or name another")
    if not os.access(out if out.exists() else folder, os.W_OK):
        raise ConfigError(f"cannot write {out}", where="--out", hint="Name another file")


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {out}: {error.strerror or 'it cannot be written'}",
            where="--out",
            hint="Name another file",
        ) from None
