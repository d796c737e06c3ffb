"""Paths written by the names of their nodes, such as ``leaf-0 spine-2 leaf-5``."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import Topology


class PathNames:
    """Finds the channels of named paths in one topology.

    A node is called as in reports, with ``-`` for spaces: ``leaf-3``, ``multi-rail-leaf-0``,
    ``GPU-17``. ``#n`` after a name takes cable n of the parallel ones that lead to it, from 0, as
    in ``leaf-0 spine-2#1 leaf-5``; without it the first is taken.
    """

    def __init__(self, topology: Topology) -> None:
        """Read nothing yet."""
        self._topology = topology

    def channels(self, src_gpu: int, nodes: Sequence[str], dst_gpu: int) -> tuple[int, ...]:
        """Return the channels from a GPU over nodes in order to another GPU.

        Raises:
            ConfigError: no such node, no cable between two of them, or a channel twice.
        """
        path: list[int] = []
        at = src_gpu
        for name in (*nodes, f"GPU-{dst_gpu}"):
            node_name, _, cable = name.partition("#")
            node = self._node(node_name)
            path.append(self._channel(at, node, cable))
            at = node
        if len(set(path)) < len(path):
            raise ConfigError("the path uses a cable twice in one direction", hint="Write it once")
        return tuple(path)

    def _node(self, name: str) -> int:
        node = self._nodes.get(name)
        if node is None:
            shown = ", ".join(list(self._nodes)[-3:])
            raise ConfigError(
                f"the path names {name!r}, which this fabric does not have",
                hint=f"Write switches such as {shown}",
            )
        return node

    def _channel(self, tail: int, head: int, cable: str) -> int:
        between = self._channels.get((tail, head), ())
        name_of = self._topology.node_name
        if not between:
            raise ConfigError(
                f"no cable leads from {name_of(tail)} to {name_of(head)}",
                hint="Name every switch between the two GPUs, in order",
            )
        if cable and not (cable.isascii() and cable.isdecimal() and int(cable) < len(between)):
            raise ConfigError(
                f"no cable #{cable} from {name_of(tail)} to {name_of(head)}",
                hint=f"Write #0 to #{len(between) - 1}",
            )
        return between[int(cable or 0)]

    @cached_property
    def _nodes(self) -> Mapping[str, int]:
        topology = self._topology
        count = topology.num_gpus + topology.num_switches
        return {topology.node_name(node).replace(" ", "-"): node for node in range(count)}

    @cached_property
    def _channels(self) -> Mapping[tuple[int, int], Sequence[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        tails, heads = self._topology.channel_tail.tolist(), self._topology.channel_head.tolist()
        for channel, ends in enumerate(zip(tails, heads, strict=True)):
            found.setdefault(ends, []).append(channel)
        return found
