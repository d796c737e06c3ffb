"""Pooled channels for even spraying: all equal-cost channels of one stage, as one wide channel.

Sets of switches are bit masks (bit s = switch s), so that finding the stages of 65,000 switch pairs
takes about a second.
"""

from collections.abc import Iterator

import numpy as np

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.deadlocks.switch_pairs import switch_pairs
from kvfabric.fabric.graph import FloatArray
from kvfabric.fabric.routes.paths import PathTable


class SprayPools:
    """The stages between all access switches that messages connect.

    Invariants (hold by construction):
        I1. a pooled id is at least ``num_channels`` of the topology and stands for two channels or
            more; a stage of one channel keeps its real id.
        I2. a real channel belongs to one stage only.
    """

    def __init__(self, paths: PathTable) -> None:
        """Find every stage.

        Raises:
            UnsupportedError: stages overlap in part, so pooling them would count capacity twice;
                or hosts forward.
        """
        self._paths = paths
        topology = paths.topology
        if topology.hosts_forward:
            raise UnsupportedError(
                f"spray over {topology.name}, where hosts forward",
                where="fabric.load_balancing",
                hint="Write ecmp or assigned",
            )
        self._real_bps = topology.channel_capacity_bps
        self._num_real = topology.num_channels
        self._next_masks = [0] * topology.num_switches
        self._bundle_by_ends: dict[tuple[int, int], int] = {}
        self._index_bundles()
        self._members: list[tuple[int, ...]] = []
        self._stage_of: dict[int, tuple[int, ...]] = {}
        self._id_by_layers: dict[tuple[int, int], int] = {}
        self._after: dict[int, int] = {}
        self._balls: dict[tuple[int, int], int] = {}
        self._stages = {pair: self._find(pair) for pair in self._pairs_in_use()}
        pooled = [float(self._real_bps[list(members)].sum()) for members in self._members]
        self._capacity_bps = np.concatenate([self._real_bps, np.array(pooled, dtype=np.float64)])

    @property
    def channel_capacity_bps(self) -> FloatArray:
        """Return the capacity of real and pooled channels."""
        return self._capacity_bps.copy()

    def stages(self, source: int, target: int) -> tuple[int, ...]:
        """Return the channel ids from one access switch to another, in order."""
        return self._stages[source, target]

    @property
    def stages_by_switches(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Return ``stages`` of every pair of access switches that messages connect."""
        return dict(self._stages)

    def channel_name(self, channel: int) -> str:
        """Return the real name, or ``all 64 channels like <first one>`` for a pool."""
        name = self._paths.topology.channel_name
        if channel < self._num_real:
            return name(channel)
        members = self._members[channel - self._num_real]
        return f"all {len(members)} channels like {name(members[0])}"

    def over_real_channels(self, per_channel: FloatArray) -> FloatArray:
        """Return ``[num_channels]`` of the topology: pools spread in proportion to capacity."""
        real = per_channel[: self._num_real].copy()
        for pool, members in enumerate(self._members):
            rates = self._real_bps[list(members)]
            real[list(members)] += per_channel[self._num_real + pool] * rates / rates.sum()
        return real

    def _index_bundles(self) -> None:
        paths = self._paths
        ends = zip(paths.bundle_tail, paths.bundle_head, strict=True)
        for bundle, (tail, head) in enumerate(ends):
            self._next_masks[tail] |= 1 << head
            self._bundle_by_ends[tail, head] = bundle

    def _pairs_in_use(self) -> Iterator[tuple[int, int]]:
        """Yield (source, target) switches that a pair of ports connects."""
        access = self._paths.topology.access_switches
        yield from ((switch, switch) for switch in np.unique(access).tolist())
        groups = np.unique(access[:, 0]), np.unique(access[:, -1])
        if access.shape[1] == 2 and (self._paths.distances[np.ix_(*groups)] == 1).all():
            # every switch of one group is a neighbor of every one of the other: unless two GPUs
            # share both switches, no pairing passes fewer links than the one of opposite groups
            is_used = np.zeros(self._paths.distances.shape, bool)
            is_used[np.ix_(*groups)] = is_used[np.ix_(*groups[::-1])] = True
        else:
            is_used = switch_pairs(self._paths)
            np.fill_diagonal(is_used, val=False)
        yield from ((source, target) for source, target in np.argwhere(is_used).tolist())

    def _find(self, pair: tuple[int, int]) -> tuple[int, ...]:
        source, target = pair
        layer, stages = 1 << source, []
        for steps_left in reversed(range(self._paths.distances.item(source, target))):
            onward = self._switches_after(layer) & self._ball(target, steps_left)
            stages.append(self._stage_id(layer, onward))
            layer = onward
        return tuple(stages)

    def _switches_after(self, layer: int) -> int:
        found = self._after.get(layer)
        if found is None:
            found = 0
            for switch in bits(layer):
                found |= self._next_masks[switch]
            self._after[layer] = found
        return found

    def _ball(self, target: int, distance: int) -> int:
        """Return the switches at a distance from the target."""
        key = (target, distance)
        if key not in self._balls:
            at = self._paths.distances[:, target] == distance
            packed = np.packbits(at, bitorder="little").tobytes()
            self._balls[key] = int.from_bytes(packed, "little")
        return self._balls[key]

    def _stage_id(self, layer: int, onward: int) -> int:
        key = (layer, onward)
        if key not in self._id_by_layers:
            members = self._channels_between(layer, onward)
            self._claim(members)
            self._id_by_layers[key] = members[0]
            if len(members) > 1:
                self._id_by_layers[key] = self._num_real + len(self._members)
                self._members.append(members)
        return self._id_by_layers[key]

    def _channels_between(self, layer: int, onward: int) -> tuple[int, ...]:
        channels: list[int] = []
        for tail in bits(layer):
            for head in bits(self._next_masks[tail] & onward):
                channels += self._paths.bundle_channels[self._bundle_by_ends[tail, head]]
        return tuple(channels)

    def _claim(self, members: tuple[int, ...]) -> None:
        for channel in members:
            if self._stage_of.setdefault(channel, members) != members:
                raise UnsupportedError(
                    f"spray over {self._paths.topology.name}: stages of equal-cost channels "
                    f"overlap in part at {self._paths.topology.channel_name(channel)}",
                    where="fabric.load_balancing",
                    hint="Write ecmp or assigned",
                )


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending.

    >>> list(bits(0b1010))
    [1, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
