"""``kvfabric topology``: options in; counts, path lengths, deadlock verdict and price out."""

import json
from collections.abc import Mapping
from typing import Any

from kvfabric.app.flags import told_by_flag
from kvfabric.app.output import check_out, write_files
from kvfabric.app.price_book_file import load_price_book
from kvfabric.app.rack_options import FLAGS
from kvfabric.app.render import render_mapping
from kvfabric.app.render_topology import render_parts
from kvfabric.errors import ConfigError
from kvfabric.export.wiring_files import fabric_files
from kvfabric.fabric.build import build_topology, find_builder
from kvfabric.fabric.deadlocks.buffer_dependencies import HopPriorities
from kvfabric.fabric.deadlocks.deadlock import DeadlockReport, deadlock_report
from kvfabric.fabric.failures import parse_failures, without
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.measures import topology_report
from kvfabric.plan.bom import BillOfMaterials, bill_of_materials, bom_to_dict
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.fabric_notes import racks_to_dict
from kvfabric.plan.price_sensitivity import price_swings, swing_to_dict
from kvfabric.plan.rack_rules import RackRules
from kvfabric.plan.wiring import Wiring, wire
from kvfabric.units import parse_rate_bps

DEFAULT_NIC_BPS = 400_000_000_000

_FLAGS = {
    "fabric.failures": "--fail",
    "fabric.kind": "--kind",
    "fabric.load_balancing": "--load-balancing",
    "fabric.nic_rate": "--nic-rate",
    "fabric.num_gpus": "--gpus",
    "fabric.num_tiers": "--tiers",
    "fabric.oversubscription": "--oversubscription",
    "fabric.port_rate": "--port-rate",
    "fabric.radix": "--radix",
    "fabric.shape": "--shape",
    **FLAGS,
}


def run_topology(options: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what the command prints, and whether the fabric is free of deadlocks.

    With ``out`` it also writes parts, wiring list and ``topology.json`` there.

    Raises:
        ConfigError: names the flag and what to write instead.
    """
    check_out(options["out"])
    book = load_price_book(options["prices"], where="--prices")
    topology = topology_of(options)
    with told_by_flag(_FLAGS):
        left = without(topology, parse_failures(topology, options["fail"]))
        report = topology_report(left)
        deadlock = deadlock_report(
            left, options["load_balancing"], parse_priorities(options["priority_hops"])
        )
        wiring = wire(topology, _rack_rules(options), CableRule(options["cables"]))
    bom = bill_of_materials(topology, book, wiring.cables)
    as_json = _as_json(report, deadlock, wiring, bom)
    if options["out"] is not None:
        write_files(options["out"], fabric_files(wiring, bom) | {"topology.json": as_json})
    is_free = not deadlock.can_deadlock
    if options["output_format"] == "json":
        return as_json, is_free
    shown = {key: "-" if value is None else value for key, value in report.items()}
    verdict = "\n".join(deadlock.lines())
    return f"{render_mapping(shown)}{verdict}\n\n{render_parts(wiring, bom)}", is_free


def _as_json(
    report: Mapping[str, object], deadlock: DeadlockReport, wiring: Wiring, bom: BillOfMaterials
) -> str:
    values = {
        **report,
        "deadlock": deadlock.as_dict(),
        "bill_of_materials": bom_to_dict(bom),
        "price_sensitivity": [swing_to_dict(swing) for swing in price_swings(bom)],
        "racks": racks_to_dict(wiring),
    }
    return json.dumps(values, indent=2) + "\n"


def _rack_rules(options: Mapping[str, Any]) -> RackRules:
    server_power_kw = options["server_power"]
    return RackRules(
        rack_units=options["rack_units"],
        rack_power_w=1000 * options["rack_power"],
        server_units=options["server_units"],
        server_power_w=None if server_power_kw is None else 1000 * server_power_kw,
        racks_per_row=options["racks_per_row"],
    )


def parse_priorities(text: str | None) -> HopPriorities:
    """Return from which hops on the next priority is used, read from such as ``2`` or ``2,3``."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isascii() and word.isdecimal() and int(word) >= 2 for word in words):
        raise ConfigError(
            f"read {text!r}", where="--priority-hops", hint="Write hops from 2 on, as in 2 or 2,3"
        )
    return HopPriorities(tuple(sorted({int(word) for word in words})))


def topology_of(options: Mapping[str, Any]) -> Topology:
    """Return the fabric that options of the command line ask for; mistakes name their flag."""
    shape = parse_shape(options["shape"])
    with told_by_flag(_FLAGS):
        port_rate_bps, nic_rate_bps = _rates(options, shape)
        return build_topology(
            options["kind"],
            options["gpus"],
            nic_rate_bps=nic_rate_bps,
            radix=options["radix"],
            port_rate_bps=port_rate_bps,
            gpus_per_server=options["gpus_per_server"],
            num_tiers=options["tiers"],
            oversubscription=options["oversubscription"],
            shape=shape,
        )


def parse_shape(text: str | None) -> dict[str, int]:
    """Return the sizes of a text such as ``planes=8,ports=2``."""
    shape: dict[str, int] = {}
    for part in text.split(",") if text else ():
        key, equals, number = (piece.strip() for piece in part.partition("="))
        if not (key and equals and number.isascii() and number.isdecimal()):
            raise ConfigError(
                f"read {part.strip()!r}", where="--shape", hint="Write key=number, as in planes=8"
            )
        if key in shape:
            raise ConfigError(f"{key!r} stands twice", where="--shape", hint="Write it once")
        shape[key] = int(number)
    return shape


def _rates(options: Mapping[str, Any], shape: Mapping[str, int]) -> tuple[int | None, int]:
    """Return the port rate, if given, and the NIC rate, which defaults to all its ports."""
    port_rate_bps = None
    if options["port_rate"] is not None:
        port_rate_bps = parse_rate_bps(options["port_rate"], where="--port-rate")
    if options["nic_rate"] is not None:
        return port_rate_bps, parse_rate_bps(options["nic_rate"], where="--nic-rate")
    if port_rate_bps is None:
        return None, DEFAULT_NIC_BPS
    return port_rate_bps, port_rate_bps * find_builder(options["kind"]).num_nic_ports(shape)
