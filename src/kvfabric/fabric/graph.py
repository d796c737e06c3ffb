"""The fabric as a graph: GPUs with NIC ports, switches, cables, two directed channels per cable.

Array backed, so that tens of thousands of cables build in well under a second. Node ids: GPUs are
``[0, num_gpus)``, switch ``s`` is node ``num_gpus + s``. Cable ``i`` has channel ``2 * i`` from end
a to end b and channel ``2 * i + 1`` back; end a of a host cable is the GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class SwitchRole(Enum):
    """Where a switch stands; a bipartite fabric has two groups of leaves and no spine."""

    LEAF = "leaf"
    SPINE = "spine"
    CORE = "core"
    AGGREGATION = "aggregation"
    ROUTER = "router"
    MULTI_RAIL = "multi-rail leaf"
    SINGLE_RAIL = "single-rail leaf"
    UNPLUGGED = "unplugged port"  # what a NIC port without its cable ends at; no switch


class Scope(IntEnum):
    """Whether a cable ends at a NIC or joins two switches."""

    HOST = 0
    FABRIC = 1


class Medium(IntEnum):
    """What a cable is made of; fibre needs an optical module at each end."""

    COPPER = 0
    FIBRE = 1


class LengthClass(IntEnum):
    """Planned cable length in metres.

    Source: the cabling assumptions of the ATOP paper (SIGCOMM 2025, section 4.1): 3 m within the
    rack, 15 m from a NIC to a leaf elsewhere in the row, 30 m between adjacent tiers.
    """

    RACK = 3
    ROW = 15
    HALL = 30


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: its role, its number within that role, and its ports at the fabric's rate."""

    role: SwitchRole
    idx: int
    radix: int

    @property
    def name(self) -> str:
        """Return text such as ``leaf 3``."""
        return f"{self.role.value} {self.idx}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """What all cables of one block have in common."""

    rate_bps: int
    scope: Scope
    medium: Medium
    length: LengthClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One full-duplex cable between two nodes, with its rate per direction."""

    link_id: int
    end_a: int
    end_b: int
    rate_bps: int
    scope: Scope
    medium: Medium
    length: LengthClass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTable:
    """Cables as columns of equal length; row number = link id."""

    end_a: IntArray
    end_b: IntArray
    rate_bps: IntArray
    scope: IntArray
    medium: IntArray
    length_m: IntArray

    def __len__(self) -> int:
        """Return the number of cables."""
        return len(self.end_a)


def link_block(end_a: IntArray, end_b: IntArray, cable: Cable) -> LinkTable:
    """Return one cable of the given kind per pair of ends."""
    count = len(end_a)
    return LinkTable(
        end_a=end_a.astype(np.int64),
        end_b=end_b.astype(np.int64),
        rate_bps=np.full(count, cable.rate_bps, dtype=np.int64),
        scope=np.full(count, cable.scope, dtype=np.int64),
        medium=np.full(count, cable.medium, dtype=np.int64),
        length_m=np.full(count, cable.length, dtype=np.int64),
    )


def join_blocks(blocks: Sequence[LinkTable]) -> LinkTable:
    """Return the blocks one after the other, in the given order."""
    return LinkTable(
        end_a=np.concatenate([block.end_a for block in blocks]),
        end_b=np.concatenate([block.end_b for block in blocks]),
        rate_bps=np.concatenate([block.rate_bps for block in blocks]),
        scope=np.concatenate([block.scope for block in blocks]),
        medium=np.concatenate([block.medium for block in blocks]),
        length_m=np.concatenate([block.length_m for block in blocks]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology:
    """A fabric that was built, ready to be counted, priced, routed and simulated.

    Invariants (checked by ``check_invariants``):
        I1. no switch uses more ports than its radix.
        I2. every GPU has the same number of NIC ports, one cable each.
        I3. a host cable joins a GPU (end a) and a switch; a fabric cable joins two switches.

    Attributes:
        kind: of the builder, such as ``clos``.
        name: short text for reports.
        num_gpus: one NIC per GPU.
        gpus_per_server: consecutive GPUs share a server.
        nic_rate_bps: of the whole NIC, over all its ports.
        port_rate_bps: of a switch port; a cable at a multiple of it takes several ports.
        num_tiers: layers of switches; the two groups of a bipartite fabric are one layer.
        switches: leaves first; position = switch index.
        links: all cables.
        access_links: ``[num_gpus, ports_per_nic]`` link id of every NIC port.
        hosts_forward: whether a path may enter a GPU's NIC at one port and leave it at another, as
            in server-centric fabrics (BCube).
    """

    kind: str
    name: str
    num_gpus: int
    gpus_per_server: int
    nic_rate_bps: int
    port_rate_bps: int
    num_tiers: int
    switches: tuple[Switch, ...]
    links: LinkTable
    access_links: IntArray = field(repr=False)
    hosts_forward: bool = False

    @property
    def num_switches(self) -> int:
        """Return the number of switches."""
        return len(self.switches)

    @property
    def num_links(self) -> int:
        """Return the number of cables."""
        return len(self.links)

    @property
    def num_channels(self) -> int:
        """Return the number of directed channels."""
        return 2 * len(self.links)

    @property
    def ports_per_nic(self) -> int:
        """Return the number of ports of each GPU's NIC."""
        return int(self.access_links.shape[1])

    @property
    def access_switches(self) -> IntArray:
        """Return ``[num_gpus, ports_per_nic]``, the switch index at the far end of each port."""
        return self.links.end_b[self.access_links] - self.num_gpus

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the rate of every channel, in bit/s."""
        return np.repeat(self.links.rate_bps, 2).astype(np.float64)

    @property
    def channel_tail(self) -> IntArray:
        """Return the node each channel leaves."""
        return np.stack([self.links.end_a, self.links.end_b], axis=1).ravel()

    @property
    def channel_head(self) -> IntArray:
        """Return the node each channel enters."""
        return np.stack([self.links.end_b, self.links.end_a], axis=1).ravel()

    def ports_used(self) -> IntArray:
        """Return the ports in use at every switch; a cable above the port rate takes several."""
        ends = np.concatenate([self.links.end_a, self.links.end_b]) - self.num_gpus
        ports = np.tile(-(-self.links.rate_bps // self.port_rate_bps), 2)
        at_switch = ends >= 0
        used = np.bincount(ends[at_switch], ports[at_switch], minlength=self.num_switches)
        return used.astype(np.int64)

    def link(self, link_id: int) -> Link:
        """Return one cable as a record."""
        links = self.links
        return Link(
            link_id=link_id,
            end_a=int(links.end_a[link_id]),
            end_b=int(links.end_b[link_id]),
            rate_bps=int(links.rate_bps[link_id]),
            scope=Scope(int(links.scope[link_id])),
            medium=Medium(int(links.medium[link_id])),
            length=LengthClass(int(links.length_m[link_id])),
        )

    def same_server(self, gpu_a: int, gpu_b: int) -> bool:
        """Return whether two GPUs reach each other inside their server."""
        return gpu_a // self.gpus_per_server == gpu_b // self.gpus_per_server

    def node_name(self, node: int) -> str:
        """Return text such as ``GPU 17`` or ``leaf 3``."""
        if node < self.num_gpus:
            return f"GPU {node}"
        return self.switches[node - self.num_gpus].name

    def channel_name(self, channel: int) -> str:
        """Return text such as ``leaf 3 -> spine 1`` or ``GPU 17 port 0 -> leaf 2``.

        Of parallel cables all but the first carry their number, as in ``leaf 3 -> spine 1 #2``.
        """
        link = self.link(channel // 2)
        ends = [self._end_name(link, link.end_a), self._end_name(link, link.end_b)]
        if channel % 2:
            ends.reverse()
        return " -> ".join(ends) + self._parallel_suffix(link)

    def _end_name(self, link: Link, node: int) -> str:
        if node >= self.num_gpus:
            return self.node_name(node)
        port = int(np.flatnonzero(self.access_links[node] == link.link_id)[0])
        return f"GPU {node} port {port}"

    def _parallel_suffix(self, link: Link) -> str:
        before = slice(0, link.link_id)
        same_a = self.links.end_a[before] == link.end_a
        number = int(np.count_nonzero(same_a & (self.links.end_b[before] == link.end_b)))
        return f" #{number}" if number and link.scope is Scope.FABRIC else ""

    def check_invariants(self) -> None:
        """Assert I1 to I3."""
        radix = np.array([switch.radix for switch in self.switches])
        assert bool((self.ports_used() <= radix).all()), "I1"
        is_host = self.links.scope == Scope.HOST
        ports = np.bincount(self.links.end_a[is_host], minlength=self.num_gpus)
        assert bool((ports == self.ports_per_nic).all()), "I2"
        assert bool(((self.links.end_a < self.num_gpus) == is_host).all()), "I3"
        assert bool((self.links.end_b >= self.num_gpus).all()), "I3"


def access_links_of(links: LinkTable, num_gpus: int) -> IntArray:
    """Return ``[num_gpus, ports_per_nic]`` link ids; port number = order of a GPU's host cables."""
    host = np.flatnonzero(links.scope == Scope.HOST)
    by_gpu = host[np.argsort(links.end_a[host], kind="stable")]
    return by_gpu.reshape(num_gpus, -1).astype(np.int64)


def number_switches(role: SwitchRole, count: int, radix: int) -> tuple[Switch, ...]:
    """Return ``count`` switches of one role, numbered from 0."""
    return tuple(Switch(role, idx, radix) for idx in range(count))
