"""The arrays that hold the state of the event-driven PFC engine, and how they grow.

Rates inside are bytes per nanosecond, instants are float64 nanoseconds. A flow lives in a *slot*;
its path is a row of ``hops`` that starts at ``slot * stride``. A *queue* is the egress queue of one
channel for one priority, at index ``priority * num_channels + channel``; all hops at one queue form
a doubly linked list.
"""

from typing import NamedTuple, TypeVar

import numpy as np

from kvfabric.fabric.engines.flow_engine import FULL_SHARE, VICTIM_SHARE
from kvfabric.fabric.engines.maxmin_tables import (
    BPS_PER_BYTE_PER_NS,
    DONE,
    ENTRY,
    Floats,
    Indices,
    Ints,
    Records,
)
from kvfabric.fabric.engines.pfc_params import PfcParams

# Queues are swept in order of their level, the longest way from there to the end of a path. More
# levels than this (cyclic routes have no end of them) share the last one: slower, not wrong.
NUM_LEVELS = 48

# The loop takes at most this share of a budget, or no channel would come near its rate.
MOST_LOOP_SHARE = 0.9

_Array = TypeVar("_Array", Records, Indices, Ints)

FLOW = np.dtype(
    [
        ("size_bytes", "f8"),
        ("remaining_bytes", "f8"),  # at updated_ns
        ("updated_ns", "f8"),
        ("rate", "f8"),
        ("start_ns", "f8"),
        ("seen_ns", "f8"),  # up to which the next two are counted
        ("held_ns", "f8"),  # below its fair share of the NIC port
        ("bound_ns", "f8"),  # of that, with a full channel on its path
        ("offered", "f8"),  # its rate at the source's NIC, before it is fitted to the channels
        ("stamp", "i8"),  # of the last solve that moved it
        ("serial", "i8"),  # counts the flows ever started
        ("num_hops", "i4"),
        ("heap_idx", "i4"),  # -1: not in the heap of finish instants
        ("num_full", "i4"),  # full channels on its path
        ("is_held", "i4"),
    ],
    align=True,
)

NEW_FLOW = np.dtype(
    [("size_bytes", "f8"), ("first_hop", "i8"), ("num_hops", "i4"), ("priority", "i4")], align=True
)

# One queue on the path of one flow; -1 ends a list. ``rate`` is that at which the flow arrives.
HOP = np.dtype(
    [
        ("rate", "f8"),
        ("channel", "i4"),
        ("queue", "i4"),
        ("next_queue", "i4"),  # -1: the path ends here
        ("after", "i4"),
        ("before", "i4"),
        ("flow", "i4"),
        ("place", "i4"),  # in the path; 0: the queue is that of the source's NIC port
    ],
    align=True,
)

# ``price`` is the queueing delay over the budget of an ingress port, in ns per byte, as it stands;
# ``told_price`` as the queues before this one know it. ``held`` is the share of its budget that the
# ingress port at the far end holds. ``capacity`` is what other priorities leave.
QUEUE = np.dtype(
    [
        ("capacity", "f8"),
        ("price", "f8"),
        ("told_price", "f8"),
        ("loop_price", "f8"),  # the loop's bytes over the budget, per byte/ns
        ("demand", "f8"),  # as the other priorities know it; infinite: all it can get
        ("load", "f8"),
        ("held", "f8"),
        ("feed", "f8"),  # change of ``held`` by price changes further down in this sweep
        ("paused_share", "f8"),
        ("paused_since_ns", "f8"),
        ("paused_ns", "f8"),  # up to paused_since_ns
        ("peak_bytes", "f8"),
        ("stamp", "i8"),  # of the last solve that visited it
        ("first_hop", "i4"),
        ("num_sources", "i4"),  # flows that start here
        ("num_hops", "i4"),
        ("level", "i4"),
        ("is_forward", "i4"),  # 1: waits for the next sweep down the paths
        ("next_forward", "i4"),
        ("is_backward", "i4"),  # 1: waits for the next sweep up the paths
        ("next_backward", "i4"),
    ],
    align=True,
)

# ``offered`` sums the flows' offered rates over all priorities; ``fit`` <= 1 makes them fit.
CHANNEL = np.dtype(
    [
        ("capacity", "f8"),
        ("offered", "f8"),
        ("fit", "f8"),
        ("carried_bytes", "f8"),  # by flows that have ended
        ("stamp", "i8"),
        ("num_hops", "i4"),
        ("is_full", "i4"),
    ],
    align=True,
)

STATE = np.dtype(
    [
        ("clock_ns", "f8"),
        ("budget_bytes", "f8"),
        ("victim_share", "f8"),  # these two as in flow_engine
        ("full_share", "f8"),
        ("cut", "f8"),  # relative change below which nothing is passed on
        ("stamp", "i8"),
        ("max_iterations", "i8"),
        ("pauses_queue_pair", "i8"),
        ("num_priorities", "i8"),
        ("num_active", "i8"),
        ("num_started", "i8"),
        ("num_solves", "i8"),
        ("num_unconverged", "i8"),
        ("num_iterations", "i8"),
        ("num_visits", "i8"),  # of hops
        ("num_victims", "i8"),
        ("num_waiting", "i8"),  # entries of both sweeps
        ("num_changed", "i8"),
        ("num_touched", "i8"),
        ("num_touched_channels", "i8"),
        ("top_level", "i8"),
    ],
    align=True,
)


class PfcTables(NamedTuple):
    """Everything the kernels read and write.

    The first ``num_active`` entries of ``heap`` are the active flows, the first
    ``num_slots - num_active`` of ``unused`` the free slots. ``forward`` and ``backward`` hold, per
    level, the first queue that waits for a sweep. ``changed``, ``touched`` and
    ``touched_channels`` list what the solve under way has moved. ``new`` and ``told`` are what the
    caller says: flows to start with the channels of their paths, or slots to drop.
    """

    flows: Records
    hops: Records
    queues: Records
    channels: Records
    heap: Records
    unused: Indices
    forward: Indices
    backward: Indices
    changed: Indices
    touched: Indices
    touched_channels: Indices
    done: Records
    new: Records
    told: Indices
    state: Records

    @property
    def num_slots(self) -> int:
        """Return how many flows fit."""
        return len(self.flows)

    @property
    def stride(self) -> int:
        """Return how many hops fit per flow."""
        return len(self.hops) // len(self.flows)


def build_tables(
    capacity_bps: Floats,
    params: PfcParams,
    *,
    num_slots: int,
    stride: int,
    cut: float,
    max_iterations: int,
) -> PfcTables:
    """Return tables without any flow."""
    num_channels = len(capacity_bps)
    num_queues = num_channels * params.num_priorities
    channels = np.zeros(num_channels, CHANNEL)
    channels["capacity"] = capacity_bps / BPS_PER_BYTE_PER_NS
    channels["fit"] = 1.0
    state = np.zeros(1, STATE)
    state["budget_bytes"] = params.budget_bytes
    state["victim_share"], state["full_share"] = VICTIM_SHARE, FULL_SHARE
    state["cut"], state["max_iterations"] = cut, max_iterations
    state["pauses_queue_pair"] = params.pauses_queue_pair
    state["num_priorities"] = params.num_priorities
    return PfcTables(
        flows=np.zeros(num_slots, FLOW),
        hops=np.zeros(num_slots * stride, HOP),
        queues=_idle_queues(capacity_bps, params),
        channels=channels,
        heap=np.zeros(num_slots, ENTRY),
        unused=np.arange(num_slots, dtype=np.int32)[::-1].copy(),
        forward=np.full(NUM_LEVELS, -1, np.int32),
        backward=np.full(NUM_LEVELS, -1, np.int32),
        changed=np.zeros(num_slots, np.int32),
        touched=np.zeros(num_queues, np.int32),
        touched_channels=np.zeros(num_channels, np.int32),
        done=np.zeros(num_slots, DONE),
        new=np.zeros(num_slots, NEW_FLOW),
        told=np.zeros(num_slots * stride, np.int32),
        state=state,
    )


def grow_tables(tables: PfcTables, *, num_slots: int, stride: int) -> PfcTables:
    """Return tables with more slots, longer rows of hops, or both; slots keep their numbers."""
    old_slots, old_stride = tables.num_slots, tables.stride
    added = np.arange(old_slots, num_slots, dtype=np.int32)[::-1]
    num_unused = old_slots - int(tables.state["num_active"][0])
    tables.queues["first_hop"] = _moved(tables.queues["first_hop"], old_stride, stride)
    return tables._replace(
        flows=_extended(tables.flows, num_slots),
        hops=_moved_hops(tables.hops, old_stride, num_slots, stride),
        heap=_extended(tables.heap, num_slots),
        unused=_extended(np.concatenate([added, tables.unused[:num_unused]]), num_slots),
        changed=np.zeros(num_slots, np.int32),
        done=np.zeros(num_slots, DONE),
        new=np.zeros(num_slots, NEW_FLOW),
        told=np.zeros(num_slots * stride, np.int32),
    )


def _idle_queues(capacity_bps: Floats, params: PfcParams) -> Records:
    per_priority = np.zeros(len(capacity_bps), QUEUE)
    capacity = capacity_bps / BPS_PER_BYTE_PER_NS
    loop_share = np.minimum(params.loop_share(capacity_bps), MOST_LOOP_SHARE)
    per_priority["capacity"] = capacity
    per_priority["loop_price"] = loop_share / capacity
    per_priority["first_hop"] = -1
    return np.tile(per_priority, params.num_priorities)


def _extended(array: _Array, length: int) -> _Array:
    longer = np.zeros(length, array.dtype)
    longer[: len(array)] = array
    return longer


def _moved_hops(hops: Records, old_stride: int, num_slots: int, stride: int) -> Records:
    moved = np.zeros((num_slots, stride), HOP)
    rows = hops.reshape(-1, old_stride)
    moved[: len(rows), :old_stride] = rows
    for link in ("after", "before"):
        moved[link] = _moved(moved[link], old_stride, stride)
    return moved.reshape(-1)


def _moved(hop_idx: Indices, old_stride: int, stride: int) -> Indices:
    """Return where hops lie after the rows were made longer; -1 stays."""
    slot, place = np.divmod(hop_idx, old_stride)
    moved: Indices = np.where(hop_idx < 0, -1, slot * stride + place).astype(np.int32)
    return moved
