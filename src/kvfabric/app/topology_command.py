"""``kvfabric topology``: options in, counts, path lengths and price out."""

import json
from collections.abc import Mapping
from typing import Any

from kvfabric.app.flags import told_by_flag
from kvfabric.app.render import render_mapping
from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.measures import topology_report
from kvfabric.fabric.topologies.zcube import PORTS_PER_NIC
from kvfabric.plan.bom import bill_of_materials, bom_to_dict
from kvfabric.units import parse_rate_bps

DEFAULT_NIC_BPS = 400_000_000_000

_FLAGS = {
    "fabric.kind": "--kind",
    "fabric.num_gpus": "--gpus",
    "fabric.num_tiers": "--tiers",
    "fabric.oversubscription": "--oversubscription",
    "fabric.port_rate": "--port-rate",
    "fabric.radix": "--radix",
}


def run_topology(options: Mapping[str, Any]) -> str:
    """Return what the command prints.

    Raises:
        ConfigError: names the flag and what to write instead.
    """
    port_rate_bps, nic_rate_bps = _rates(options)
    with told_by_flag(_FLAGS):
        topology = build_topology(
            options["kind"],
            options["gpus"],
            nic_rate_bps=nic_rate_bps,
            radix=options["radix"],
            port_rate_bps=port_rate_bps,
            num_tiers=options["tiers"],
            oversubscription=options["oversubscription"],
        )
    report = topology_report(topology)
    bom = bom_to_dict(bill_of_materials(topology, PRICE_BOOK))
    report["bill_of_materials"] = bom
    if options["output_format"] == "json":
        return json.dumps(report, indent=2) + "\n"
    return render_mapping(report)


def _rates(options: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return the port rate, if given, and the NIC rate, which defaults to all its ports."""
    port_rate_bps = None
    if options["port_rate"] is not None:
        port_rate_bps = parse_rate_bps(options["port_rate"], where="--port-rate")
    if options["nic_rate"] is not None:
        return port_rate_bps, parse_rate_bps(options["nic_rate"], where="--nic-rate")
    if port_rate_bps is None:
        return None, DEFAULT_NIC_BPS
    return port_rate_bps, port_rate_bps * (PORTS_PER_NIC if options["kind"] == "zcube" else 1)
