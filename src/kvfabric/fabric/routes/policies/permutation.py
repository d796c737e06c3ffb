"""The best paths for messages known ahead: no channel carries more of them than it must."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.routes.folded_clos import folded_clos
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.balancer import Stripe, stripe_path, stripes
from kvfabric.fabric.routes.policies.edge_coloring import color_edges
from kvfabric.units import ceil_div

Paths = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Flow:
    """A stripe between two switches that its hops so far have brought closer together."""

    stripe: Stripe
    source: int
    target: int
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


def assign_permutation(paths: PathTable, pairs: Sequence[tuple[int, int]]) -> list[Paths]:
    """Return the paths of messages that all run at once, one per pair of NIC ports.

    In a folded Clos the stripes between leaves are the edges of a bipartite graph, and a coloring
    of its edges with as many colors as a leaf has uplinks gives every stripe an uplink and a
    downlink; tier by tier. So no channel between switches carries more than the most loaded switch
    of its tier forces: of a permutation one stripe, where nothing is oversubscribed. In flat ZCube
    the port rule fixes both switches; stripes take the parallel cables in turn, which is the best.

    Args:
        paths: of the fabric.
        pairs: source and destination GPU of every message. Messages count alike.

    Returns:
        For every message its paths; none within a server.

    Raises:
        UnsupportedError: the fabric is neither, or switches of a tier have unequal uplinks.
    """
    num_ports = paths.topology.ports_per_nic
    flows = [
        [
            _Flow(
                stripe,
                paths.access_switch(stripe.src_gpu, stripe.src_port),
                paths.access_switch(stripe.dst_gpu, stripe.dst_port),
            )
            for stripe in stripes(paths, source, target, num_ports)
        ]
        for source, target in pairs
    ]
    between = [flow for own in flows for flow in own if flow.source != flow.target]
    if folded_clos(paths) is not None:
        while between:
            _climb(paths, between)
            between = [flow for flow in between if flow.source != flow.target]
    else:
        _take_turns(paths, between)
    return [
        tuple(stripe_path(paths, flow.stripe, flow.up + flow.down[::-1]) for flow in own)
        for own in flows
    ]


def _climb(paths: PathTable, flows: Sequence[_Flow]) -> None:
    """Give every flow its channels up from its source and down to its target, one tier."""
    width, cables = _uplinks(paths, flows)
    ends = [(flow.source, flow.target) for flow in flows]
    most = max(max(Counter(side).values()) for side in zip(*ends, strict=True))
    colors = color_edges(ends, width * ceil_div(most, width))
    for flow, color in zip(flows, colors, strict=True):
        place, cable = divmod(color % width, cables)
        up = paths.bundles_up(flow.source)[place]
        back = paths.bundles_up(flow.target)[place]
        flow.up.append(paths.bundle_channels[up][cable])
        # the two directions of a cable are neighboring channels
        flow.down.append(paths.bundle_channels[back][cable] ^ 1)
        flow.source, flow.target = paths.bundle_head[up], paths.bundle_head[back]


def _uplinks(paths: PathTable, flows: Sequence[_Flow]) -> tuple[int, int]:
    """Return the channels up from every switch of these flows, and how many are parallel."""
    switches = {switch for flow in flows for switch in (flow.source, flow.target)}
    widths = {
        tuple(len(paths.bundle_channels[bundle]) for bundle in paths.bundles_up(switch))
        for switch in switches
    }
    width = next(iter(widths))
    if len(widths) > 1 or len(set(width)) != 1:
        raise UnsupportedError(
            f"{paths.topology.name}: switches of one tier have unequal uplinks",
            where="fabric.load_balancing",
            hint="Write assigned",
        )
    return sum(width), width[0]


def _take_turns(paths: PathTable, flows: Sequence[_Flow]) -> None:
    """Give every flow the next cable between its two switches."""
    turns: Counter[tuple[int, int]] = Counter()
    for flow in flows:
        ends = flow.source, flow.target
        if paths.topology.hosts_forward or paths.distances.item(*ends) != 1:
            raise UnsupportedError(
                f"{paths.topology.name} is neither a folded Clos nor a flat ZCube",
                where="fabric.load_balancing",
                hint="Write assigned",
            )
        cables = paths.channels_toward(*ends)
        flow.up.append(cables[turns[ends] % len(cables)])
        turns[ends] += 1
