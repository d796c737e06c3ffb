"""The arrays that hold the state of the max-min flow engine, and how they grow.

Rates inside are bytes per nanosecond, instants are float64 nanoseconds. A flow lives in a *slot*;
its path is a row of ``hops`` that starts at ``slot * stride``. All hops on one channel form a
doubly linked list, so that a flow joins or leaves a channel in O(1).
"""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Records = NDArray[np.void]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Array = TypeVar("Array", Records, Indices, Ints)

BPS_PER_BYTE_PER_NS = 8e9

# One active flow. ``stamp`` at or above the stamp of the current round marks a member of the set
# that is being solved. ``bottleneck`` is the certificate of its rate: a saturated channel on which
# no flow is faster.
FLOW = np.dtype(
    [
        ("size_bytes", "f8"),
        ("remaining_bytes", "f8"),  # at updated_ns
        ("updated_ns", "f8"),
        ("rate", "f8"),
        ("new_rate", "f8"),
        ("stamp", "i8"),
        ("serial", "i8"),  # counts the flows ever started
        ("payload_bytes", "i8"),
        ("bottleneck", "i4"),
        ("num_hops", "i4"),
        ("heap_idx", "i4"),  # -1: not in the heap of finish instants
        ("group", "i4"),  # flows of one transfer; -1: none
    ],
    align=True,
)

# A flow to start: ``size_bytes`` go over the wire, ``payload_bytes`` are what path assignment
# counts. Its path is ``num_hops`` channels of a list, from ``first_hop`` on.
NEW_FLOW = np.dtype(
    [
        ("size_bytes", "f8"),
        ("payload_bytes", "i8"),
        ("first_hop", "i8"),
        ("num_hops", "i4"),
        ("group", "i4"),
    ],
    align=True,
)

# A flow that has ended or was dropped: its exact instant, and that rounded up.
DONE = np.dtype(
    [("instant_ns", "f8"), ("whole_ns", "i8"), ("serial", "i8"), ("slot", "i8")], align=True
)

# One channel on the path of one flow; -1 ends a list.
HOP = np.dtype([("channel", "i4"), ("flow", "i4"), ("next", "i4"), ("previous", "i4")], align=True)

# One channel. ``free``, ``num_members``, ``slowest_held`` (the slowest outsider bound here) and
# ``fastest_outside`` come from the last scan of the channel; ``residual``, ``level``,
# ``num_unfrozen`` and ``has_frozen`` from the last filling.
CHANNEL = np.dtype(
    [
        ("capacity", "f8"),
        ("carried_bytes", "f8"),  # by flows that have ended
        ("free", "f8"),
        ("slowest_held", "f8"),
        ("fastest_outside", "f8"),
        ("residual", "f8"),
        ("level", "f8"),  # rate of the fastest member
        ("stamp", "i8"),
        ("first_hop", "i4"),
        ("num_members", "i4"),
        ("num_unfrozen", "i4"),
        ("has_frozen", "i4"),  # 1: some member has its bottleneck here
    ],
    align=True,
)

# A heap entry: ``item`` is a slot or a channel, ``key`` its instant or its fair share.
ENTRY = np.dtype([("key", "f8"), ("item", "i8")], align=True)

STATE = np.dtype(
    [
        ("clock_ns", "f8"),
        ("full_solve_above", "f8"),
        ("stamp", "i8"),
        ("num_active", "i8"),
        ("num_started", "i8"),
        ("num_solves", "i8"),
        ("num_full_solves", "i8"),
        ("num_rounds", "i8"),
        ("num_flows_solved", "i8"),
    ],
    align=True,
)


class FlowTables(NamedTuple):
    """Everything the kernels read and write.

    The first ``num_active`` entries of ``heap`` are the active flows, the first
    ``num_slots - num_active`` of ``unused`` the free slots. ``group_left`` holds how many flows of
    each group are under way; ``ended`` takes the instant and number of the groups that ended.
    """

    flows: Records
    hops: Records
    channels: Records
    heap: Records
    unused: Indices
    members: Indices
    touched: Indices
    shares: Records
    done: Records
    state: Records
    group_left: Ints
    ended: Ints

    @property
    def num_slots(self) -> int:
        """Return how many flows fit."""
        return len(self.flows)

    @property
    def stride(self) -> int:
        """Return how many hops fit per flow."""
        return len(self.hops) // len(self.flows)


def build_tables(
    capacity_bps: Floats, *, num_slots: int, stride: int, full_solve_above: float
) -> FlowTables:
    """Return tables without any flow."""
    num_channels = len(capacity_bps)
    channels = np.zeros(num_channels, CHANNEL)
    channels["capacity"] = capacity_bps / BPS_PER_BYTE_PER_NS
    channels["first_hop"] = -1
    state = np.zeros(1, STATE)
    state["full_solve_above"] = full_solve_above
    state["stamp"] = 1  # above that of every channel
    return FlowTables(
        flows=np.zeros(num_slots, FLOW),
        hops=np.zeros(num_slots * stride, HOP),
        channels=channels,
        heap=np.zeros(num_slots, ENTRY),
        unused=np.arange(num_slots, dtype=np.int32)[::-1].copy(),
        members=np.zeros(num_slots, np.int32),
        touched=np.zeros(num_channels, np.int32),
        shares=np.zeros(num_channels, ENTRY),
        done=np.zeros(num_slots, DONE),
        state=state,
        group_left=np.zeros(num_slots, np.int64),
        ended=np.zeros(2 * num_slots, np.int64),
    )


def grow_tables(tables: FlowTables, *, num_slots: int, stride: int) -> FlowTables:
    """Return tables with more slots, longer rows of hops, or both; slots keep their numbers."""
    old_slots, old_stride = tables.num_slots, tables.stride
    added = np.arange(old_slots, num_slots, dtype=np.int32)[::-1]
    num_unused = old_slots - int(tables.state["num_active"][0])
    tables.channels["first_hop"] = _moved(tables.channels["first_hop"], old_stride, stride)
    return tables._replace(
        flows=_extended(tables.flows, num_slots),
        hops=_moved_hops(tables.hops, old_stride, num_slots, stride),
        heap=_extended(tables.heap, num_slots),
        unused=_extended(np.concatenate([added, tables.unused[:num_unused]]), num_slots),
        members=np.zeros(num_slots, np.int32),
        done=np.zeros(num_slots, DONE),
        group_left=_extended(tables.group_left, num_slots),
        ended=np.zeros(2 * num_slots, np.int64),
    )


def _extended(array: Array, length: int) -> Array:
    longer = np.zeros(length, array.dtype)
    longer[: len(array)] = array
    return longer


def _moved_hops(hops: Records, old_stride: int, num_slots: int, stride: int) -> Records:
    moved = np.zeros((num_slots, stride), HOP)
    rows = hops.reshape(-1, old_stride)
    moved[: len(rows), :old_stride] = rows
    for link in ("next", "previous"):
        moved[link] = _moved(moved[link], old_stride, stride)
    return moved.reshape(-1)


def _moved(hop_idx: Indices, old_stride: int, stride: int) -> Indices:
    """Return where hops lie after the rows were made longer; -1 stays."""
    slot, place = np.divmod(hop_idx, old_stride)
    moved: Indices = np.where(hop_idx < 0, -1, slot * stride + place).astype(np.int32)
    return moved
