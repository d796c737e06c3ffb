"""What is left of a fabric after cables, switches, NIC ports or whole planes have failed.

GPUs, switches and NIC ports keep their numbers. A failed switch has no cable left. A NIC port
without its cable ends at a stub of its own, an unplugged port after all switches that bears the
number of the lost neighbor; so everything that works on a graph works on what is left.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import LinkTable, Scope, SwitchRole, Topology, access_links_of
from kvfabric.fabric.measured.connectivity import cut_off_gpus, gpu_names, switch_components

BoolArray = npt.NDArray[np.bool_]

_NAMED_AT_MOST = 4


@dataclass(frozen=True, slots=True)
class Failures:
    """What has failed: link ids (those of NIC ports included) and switch indices."""

    links: frozenset[int] = frozenset()
    switches: frozenset[int] = frozenset()

    def __or__(self, other: "Failures") -> "Failures":
        """Return both together."""
        return Failures(self.links | other.links, self.switches | other.switches)


def failed_port(topology: Topology, gpu: int, port: int) -> Failures:
    """Return the failure of one NIC port, or of its cable."""
    return Failures(links=frozenset([int(topology.access_links[gpu, port])]))


def failed_plane(topology: Topology, plane: int) -> Failures:
    """Return the failure of all switches of one plane.

    Planes, or rails, are the parts that no cable joins, numbered by their first switch.
    """
    label = switch_components(topology)
    return Failures(switches=frozenset(np.flatnonzero(label == planes(topology)[plane]).tolist()))


def planes(topology: Topology) -> list[int]:
    """Return the first switch of every plane."""
    found: list[int] = np.unique(switch_components(topology)).tolist()
    return found


def without(topology: Topology, failures: Failures) -> Topology:
    """Return what is left of a fabric.

    Raises:
        ConfigError: GPUs are cut off; names them. A GPU whose own ports are gone is not, as long as
            another one of its server still has a way (PXN).
    """
    links = topology.links
    gone = failed_links(topology, failures)
    unplugged = gone & (links.scope == Scope.HOST)
    stubs = tuple(
        dataclasses.replace(
            topology.switches[node - topology.num_gpus], role=SwitchRole.UNPLUGGED, radix=1
        )
        for node in links.end_b[unplugged].tolist()
    )
    end_b = links.end_b.copy()
    end_b[unplugged] = topology.num_gpus + topology.num_switches + np.arange(len(stubs))
    left = _rows(dataclasses.replace(links, end_b=end_b), ~gone | unplugged)
    names = _failure_names(topology, failures)
    remaining = dataclasses.replace(
        topology,
        name=f"{topology.name}, without {names}" if names else topology.name,
        switches=topology.switches + stubs,
        links=left,
        access_links=access_links_of(left, topology.num_gpus),
    )
    lost = cut_off_gpus(remaining)
    if lost:
        raise ConfigError(
            f"without {names}, {gpu_names(lost)} cut off from the rest of {topology.name}",
            where="fabric.failures",
            hint="Let less fail",
        )
    return remaining


def failed_links(topology: Topology, failures: Failures) -> BoolArray:
    """Return ``[num_links]``: the cables that failed, or lost the switch at one end."""
    links = topology.links
    gone = np.zeros(len(links), bool)
    gone[list(failures.links)] = True
    dead_nodes = topology.num_gpus + np.array(sorted(failures.switches), np.int64)
    gone |= np.isin(links.end_a, dead_nodes) | np.isin(links.end_b, dead_nodes)
    return gone


def _rows(links: LinkTable, kept: BoolArray) -> LinkTable:
    columns = (field.name for field in dataclasses.fields(LinkTable))
    return LinkTable(**{name: getattr(links, name)[kept] for name in columns})


def _failure_names(topology: Topology, failures: Failures) -> str:
    names = [topology.switches[switch].name for switch in sorted(failures.switches)]
    names += [
        topology.channel_name(2 * link).replace(" -> ", " - ") for link in sorted(failures.links)
    ]
    rest = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


def parse_failures(topology: Topology, texts: Iterable[str]) -> Failures:
    """Return the failures that texts name.

    Args:
        topology: the fabric, whose reports give the names.
        texts: ``switch:leaf 3``, ``link:leaf 3 - spine 1`` (the first cable of several;
            ``link:leaf 3 - spine 1 #1`` is the second), ``port:GPU 17 port 0`` or ``plane:1``.

    Raises:
        ConfigError: nothing has that name; says which names there are.
    """
    found = Failures()
    for text in texts:
        kind, _, name = (part.strip() for part in text.partition(":"))
        parse = _PARSERS.get(kind)
        if parse is None or not name:
            raise _unknown(
                text, "switch:leaf 3, link:leaf 3 - spine 1, port:GPU 17 port 0, plane:1"
            )
        found |= parse(topology, text, name)
    return found


def _unknown(text: str, known: str) -> ConfigError:
    return ConfigError(f"failure {text!r}", where="fabric.failures", hint=f"Write {known}")


def _parse_switch(topology: Topology, text: str, name: str) -> Failures:
    for index, switch in enumerate(topology.switches):
        if switch.name == name:
            return Failures(switches=frozenset([index]))
    raise _unknown(text, f"switch: and one of {_switch_ranges(topology)}")


def _switch_ranges(topology: Topology) -> str:
    """Return text such as ``leaf 0-31, spine 0-15``."""
    real = (switch for switch in topology.switches if switch.role is not SwitchRole.UNPLUGGED)
    last = {switch.role.value: switch.idx for switch in real}
    return ", ".join(f"{role} 0-{idx}" if idx else f"{role} 0" for role, idx in last.items())


def _parse_link(topology: Topology, text: str, name: str) -> Failures:
    ends, _, number = name.replace("->", " - ").partition("#")
    names = [end.strip() for end in ends.split(" - ")]
    if len(names) != 2 or not (number.strip() or "0").isdecimal():
        raise _unknown(text, "link:leaf 3 - spine 1, or link:leaf 3 - spine 1 #1 for the second")
    if names[0].startswith("GPU"):
        return _parse_port(topology, text, names[0])
    nodes = [
        topology.num_gpus + next(iter(_parse_switch(topology, text, end).switches)) for end in names
    ]
    joins = np.isin(topology.links.end_a, nodes) & np.isin(topology.links.end_b, nodes)
    cables: Sequence[int] = np.flatnonzero(joins).tolist()
    place = int(number or 0)
    if place >= len(cables):
        count = f"{len(cables)} cables" if cables else "no cable"
        raise _unknown(text, f"two switches with a cable between them; these have {count}")
    return Failures(links=frozenset([cables[place]]))


def _parse_port(topology: Topology, text: str, name: str) -> Failures:
    words = name.split()
    if (
        len(words) == 4
        and words[::2] == ["GPU", "port"]
        and all(w.isdecimal() for w in words[1::2])
    ):
        gpu, port = int(words[1]), int(words[3])
        if gpu < topology.num_gpus and port < topology.ports_per_nic:
            return failed_port(topology, gpu, port)
    last_gpu, last_port = topology.num_gpus - 1, topology.ports_per_nic - 1
    raise _unknown(text, f"port:GPU 0 port 0 up to port:GPU {last_gpu} port {last_port}")


def _parse_plane(topology: Topology, text: str, name: str) -> Failures:
    num_planes = len(planes(topology))
    if not name.isdecimal() or int(name) >= num_planes:
        raise _unknown(text, f"plane:0 to plane:{num_planes - 1}")
    return failed_plane(topology, int(name))


_PARSERS = {
    "switch": _parse_switch,
    "link": _parse_link,
    "port": _parse_port,
    "plane": _parse_plane,
}
