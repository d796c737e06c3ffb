"""The arrays by which compiled routing finds paths, and how they are built from a policy's rules.

What a switch may do next toward a target is a *row* of items: bundles under ``assigned``, hops
under all other policies. Rows are found when they are first needed; equal rows of a switch are one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfabric.fabric.engines.maxmin_tables import Indices, Records
from kvfabric.fabric.measured.measures import ByteArray
from kvfabric.fabric.routes.paths import PathTable

# A NIC port: its channel into the fabric (the one back is the next channel), its switch, and the
# number that ``indexed`` policies go by.
PORT = np.dtype([("uplink", "i4"), ("switch", "i4"), ("idx", "i8")], align=True)

# A switch. ``turn`` counts the paths assigned from here. The other fields of ``assigned``'s search
# hold for the search number ``search``: the path found so far, and how it came.
SWITCH = np.dtype(
    [
        ("salt", "u8"),
        ("turn", "i8"),
        ("search", "i8"),
        ("largest_bytes", "i8"),
        ("total_bytes", "i8"),
        ("came_by", "i4"),  # bundle
        ("came_from", "i4"),  # switch
        ("first_bundle", "i4"),
        ("num_bundles", "i4"),
        ("first_row", "i4"),  # -1 ends a list of rows
    ],
    align=True,
)

# All parallel hops from one switch to another: ``bundled[first:first + num_channels]``.
BUNDLE = np.dtype(
    [
        ("least_bytes", "i8"),  # load of its least loaded hop
        ("divisor", "i8"),  # of a port's number, under ``indexed``
        ("lightest", "i4"),  # that hop
        ("head", "i4"),
        ("first", "i4"),
        ("num_channels", "i4"),
    ],
    align=True,
)

# A hop between switches, with the load assigned to it. A relay has its GPU and both its channels;
# the channels of NIC ports have their port.
HOP_LOAD = np.dtype(
    [
        ("assigned_bytes", "i8"),
        ("bundle", "i4"),
        ("place", "i4"),
        ("head", "i4"),
        ("gpu", "i4"),
        ("come", "i4"),
        ("go", "i4"),
        ("port", "i4"),
    ],
    align=True,
)

# ``items[first:first + num_items]``; ``next`` is another row of the same switch.
ROW = np.dtype([("first", "i4"), ("num_items", "i4"), ("next", "i4")], align=True)

ROUTER = np.dtype(
    [
        ("seed", "u8"),
        ("policy", "i8"),
        ("queue_pairs", "i8"),
        ("gpus_per_server", "i8"),
        ("ports_per_nic", "i8"),
        ("least_part_bytes", "i8"),
        ("by_source", "i8"),
        ("num_channels", "i8"),
        ("links_per_hop", "i8"),  # 2 where hosts forward
        ("payload_bytes", "i8"),
        ("frame_bytes", "i8"),
        ("items_per_message", "i8"),  # room that the rows of one message can need
        ("num_rows", "i8"),
        ("num_items", "i8"),
        ("search", "i8"),
        ("num_new", "i8"),
        ("num_hops", "i8"),
        ("longest_hops", "i8"),
    ],
    align=True,
)


class Policy(IntEnum):
    """How the next hop is chosen."""

    ECMP = 0
    SPRAY = 1
    ASSIGNED = 2
    INDEXED = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathRules:
    """All that decides the paths of a policy.

    Attributes:
        policy: the policy.
        paths: the shortest paths of its fabric.
        queue_pairs: parts per NIC port of a message that is long enough.
        least_part_bytes: there is a further part for every so many bytes of a port.
        seed: of the hash, already mixed.
        salts: of the hash, one per switch; none is as good as zeros.
        stages: under ``spray``, the channels between each pair of switches.
        port_numbers: under ``indexed``, ``[num_gpus * ports_per_nic]``.
        divisors: under ``indexed``, one per bundle.
        by_source: under ``indexed``, whether the source's port counts, or the destination's.
    """

    policy: Policy
    paths: PathTable
    queue_pairs: int = 1
    least_part_bytes: int = 1
    seed: int = 0
    salts: Sequence[int] = ()
    stages: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    port_numbers: Sequence[int] = ()
    divisors: Sequence[int] = ()
    by_source: bool = False


class RoutingTables(NamedTuple):
    """Everything the routing kernels read and write.

    ``row_of[switch, target]`` is a row plus one, or 0 when it was not needed yet. ``frontier`` is
    room for the switches of two stages of a search.
    """

    ports: Records
    switches: Records
    bundles: Records
    bundled: Indices
    channels: Records
    row_of: NDArray[np.int32]
    rows: Records
    items: Indices
    distances: ByteArray
    pairings: Indices
    frontier: Indices
    router: Records


def build_routing(rules: PathRules, payload_bytes: int, frame_bytes: int) -> RoutingTables:
    """Return tables without load; ``frame_bytes`` go over the wire per ``payload_bytes``."""
    paths = rules.paths
    num_switches = paths.topology.num_switches
    bundles = _bundles(rules)
    bundled = np.array(list(chain.from_iterable(paths.bundle_channels)), np.int32)
    router = _router(rules, payload_bytes, frame_bytes)
    capacity = 2 * router["items_per_message"].item(0)
    tables = RoutingTables(
        ports=_ports(rules),
        switches=_switches(paths, rules.salts),
        bundles=bundles,
        bundled=bundled,
        channels=_hops(paths, bundles, bundled),
        row_of=np.zeros((num_switches, num_switches), np.int32),
        rows=np.zeros(capacity, ROW),
        items=np.zeros(capacity, np.int32),
        distances=np.ascontiguousarray(paths.distances),
        pairings=np.array(paths.pairings, np.int32),
        frontier=np.zeros(2 * num_switches, np.int32),
        router=router,
    )
    return _with_stages(tables, rules.stages) if rules.stages else tables


def with_more_items(tables: RoutingTables) -> RoutingTables:
    """Return tables with room for twice the rows and items."""
    return tables._replace(
        rows=np.concatenate([tables.rows, np.zeros_like(tables.rows)]),
        items=np.concatenate([tables.items, np.zeros_like(tables.items)]),
    )


def _ports(rules: PathRules) -> Records:
    topology = rules.paths.topology
    ports = np.zeros(topology.access_links.size, PORT)
    ports["uplink"] = 2 * topology.access_links.ravel()
    ports["switch"] = topology.access_switches.ravel()
    if rules.port_numbers:
        ports["idx"] = rules.port_numbers
    return ports


def _bundles(rules: PathRules) -> Records:
    paths = rules.paths
    bundles = np.zeros(len(paths.bundle_channels), BUNDLE)
    num_channels = [len(channels) for channels in paths.bundle_channels]
    bundles["num_channels"] = num_channels
    bundles["first"] = list(accumulate(num_channels[:-1], initial=0)) if num_channels else []
    bundles["lightest"] = [channels[0] for channels in paths.bundle_channels]
    bundles["head"] = paths.bundle_head
    bundles["divisor"] = rules.divisors or 1
    return bundles


def _hops(paths: PathTable, bundles: Records, bundled: Indices) -> Records:
    topology = paths.topology
    hops = np.zeros(len(paths.bundle_of), HOP_LOAD)
    hops["bundle"] = paths.bundle_of
    hops["place"][bundled] = np.arange(len(bundled)) - np.repeat(
        bundles["first"], bundles["num_channels"]
    )
    hops["head"][bundled] = np.repeat(bundles["head"], bundles["num_channels"])
    if paths.relays:
        relays = np.array(paths.relays, np.int32)
        for column, name in enumerate(("gpu", "come", "go")):
            hops[name][topology.num_channels :] = relays[:, column]
        links = topology.access_links.ravel()
        hops["port"][2 * links] = hops["port"][2 * links + 1] = np.arange(len(links))
    return hops


def _switches(paths: PathTable, salts: Sequence[int]) -> Records:
    switches = np.zeros(paths.topology.num_switches, SWITCH)
    switches["salt"] = np.array(salts, np.uint64) if salts else 0
    switches["first_row"] = -1
    # bundles are numbered by the switch they leave
    tails = np.array(paths.bundle_tail, np.int64)
    switches["num_bundles"] = np.bincount(tails, minlength=len(switches))
    switches["first_bundle"] = np.cumsum(switches["num_bundles"]) - switches["num_bundles"]
    return switches


def _router(rules: PathRules, payload_bytes: int, frame_bytes: int) -> Records:
    paths = rules.paths
    topology = paths.topology
    router = np.zeros(1, ROUTER)
    router["seed"], router["policy"] = np.uint64(rules.seed), rules.policy
    router["queue_pairs"] = rules.queue_pairs
    router["gpus_per_server"] = topology.gpus_per_server
    router["ports_per_nic"] = topology.ports_per_nic
    router["least_part_bytes"], router["by_source"] = rules.least_part_bytes, rules.by_source
    router["num_channels"], router["links_per_hop"] = topology.num_channels, paths.links_per_hop
    router["payload_bytes"], router["frame_bytes"] = payload_bytes, frame_bytes
    if not rules.stages:
        # per target switch, every switch may need a row of all its channels
        num_channels = sum(map(len, paths.bundle_channels))
        router["items_per_message"] = topology.ports_per_nic * num_channels
    return router


def _with_stages(
    tables: RoutingTables, stages: Mapping[tuple[int, int], tuple[int, ...]]
) -> RoutingTables:
    """Return tables with one row of channels per pair of switches that has any between them."""
    pairs = np.array(list(stages), np.int64).reshape(-1, 2)
    rows = np.zeros(len(pairs), ROW)
    rows["num_items"] = [len(channels) for channels in stages.values()]
    rows["first"] = np.cumsum(rows["num_items"]) - rows["num_items"]
    tables.row_of[pairs[:, 0], pairs[:, 1]] = np.arange(1, len(pairs) + 1)
    items = np.array(list(chain.from_iterable(stages.values())), np.int32)
    return tables._replace(rows=rows, items=items)
