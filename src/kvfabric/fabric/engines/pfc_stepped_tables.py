"""The arrays that hold the state of the time-stepped engine with priority flow control (PFC).

Bytes are float64, instants are whole steps. A flow lives in a *slot*; the channels of its path are
a row of ``path`` that starts at ``slot * stride``, and ``queued`` holds at the same place the bytes
of the flow that wait for that channel (none for the first one: the NIC sends from memory).
"""

import math
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvfabric.fabric.engines.flow_engine import FULL_SHARE, VICTIM_SHARE
from kvfabric.fabric.engines.pfc_params import PfcParams

Records = NDArray[np.void]
Floats = NDArray[np.float64]
Indices = NDArray[np.int32]
Array = TypeVar("Array", Records, Indices, Floats)

BPS_PER_BYTE_PER_NS = 8e9

# One active flow. Its last byte waits at hop ``tail_hop`` (0: not all has been sent) with
# ``tail_ahead`` bytes up to and including it in that queue. A flow outside the hot set is up to
# date as of step ``since``. ``held_steps`` counts the steps in which it got less than its fair
# share of the NIC, ``bound_steps`` those of them with a full channel on its path; both are noted
# for a *window* of steps at a time.
FLOW = np.dtype(
    [
        ("size_bytes", "f8"),
        ("left_bytes", "f8"),  # not yet sent
        ("tail_ahead", "f8"),
        ("since", "i8"),
        ("start_step", "i8"),
        ("window_step", "i8"),  # where its window began
        ("window_left", "f8"),  # ``left_bytes`` and its NIC's ``fair_bytes`` then
        ("window_fair", "f8"),
        ("held_steps", "i8"),
        ("bound_steps", "i8"),
        ("serial", "i8"),  # counts the flows ever started
        ("pause_bits", "u8"),  # of its queue pair: bit i is what the switch wanted i steps ago
        ("tail_hop", "i4"),
        ("num_hops", "i4"),
        ("is_hot", "i4"),
        ("wants_pause", "i4"),
    ],
    align=True,
)

# One directed channel. ``backlog`` waits for it; ``ingress`` has come over it and is still held by
# the switch it leads to. ``ratio`` is the share of a queued flow that moves in this step, ``share``
# what each flow of a NIC may send. ``pause_bits`` as for a flow.
CHANNEL = np.dtype(
    [
        ("capacity", "f8"),  # bytes per step
        ("backlog", "f8"),
        ("ingress", "f8"),
        ("weight", "f8"),
        ("ratio", "f8"),
        ("share", "f8"),
        ("demand", "f8"),
        ("peak_bytes", "f8"),
        ("carried_bytes", "f8"),  # by flows that are over
        ("fair_bytes", "f8"),  # what a flow of this NIC could have sent so far in hot steps
        ("window_bytes", "f8"),  # moved in the window under way
        ("window_steps", "i8"),  # hot ones in it
        ("window", "i8"),
        ("pause_bits", "u8"),
        ("paused_steps", "i8"),
        ("stamp", "i8"),
        ("left_step", "i8"),  # when its last flow left
        ("parent", "i4"),
        ("num_sources", "i4"),  # flows that still send into it from memory
        ("num_flows", "i4"),
        ("wants_pause", "i4"),
        ("is_hot", "i4"),
        ("is_nic", "i4"),
    ],
    align=True,
)

# A flow that has ended: its exact instant.
DONE = np.dtype([("instant_ns", "f8"), ("serial", "i8"), ("slot", "i8")], align=True)

STATE = np.dtype(
    [
        ("step", "i8"),  # the next to be run
        ("wake_step", "i8"),  # when a flow outside the hot set has sent all but one step's bytes
        ("sorted_step", "i8"),
        ("stamp", "i8"),
        ("window", "i8"),  # counts the windows
        ("num_active", "i8"),
        ("num_hot", "i8"),
        ("num_hot_channels", "i8"),
        ("num_victims", "i8"),
        ("num_flow_steps", "i8"),
        ("idle_steps", "i8"),  # since the last one in which a hot flow moved
        ("victim_share", "f8"),  # these two as in flow_engine
        ("full_share", "f8"),
        ("step_ns", "f8"),
        ("xoff_bytes", "f8"),
        ("xon_bytes", "f8"),
        ("delay_steps", "i8"),
        ("pauses_queue_pair", "i8"),
    ],
    align=True,
)


class SteppedTables(NamedTuple):
    """Everything the kernels read and write.

    The first ``num_hot`` entries of ``active`` are the slots of the *hot* flows, those that share
    a channel, directly or through others, with a queue or a pause; the rest up to ``num_active``
    run at the rate of their NIC. The first ``num_slots - num_active`` of ``unused`` are the free
    slots. ``hot_channels`` are the channels of the hot flows.
    """

    flows: Records
    path: Indices
    queued: Floats
    channels: Records
    active: Indices
    scratch: Indices
    hot_channels: Indices
    unused: Indices
    done: Records
    state: Records

    @property
    def num_slots(self) -> int:
        """Return how many flows fit."""
        return len(self.flows)

    @property
    def stride(self) -> int:
        """Return how many hops fit per flow."""
        return len(self.path) // len(self.flows)


class StepPlan(NamedTuple):
    """How long a step is, and after how many a pause acts."""

    step_ns: float
    delay_steps: int


# Steps per loop delay. Also the time a byte takes per hop, so that the default of 700 ns stands for
# a wire of 500 ns and part of a switch of 300 ns.
_STEPS_PER_LOOP = 3
# Measured against the packet-level runs: packets come in bursts, which a fluid lacks, and let a
# pause last about twice the loop. With once the loop, p99 of ``perm1024n`` is 7 % short, not 3 %.
_LOOPS_PER_PAUSE = 2
_MOST_BUDGET_PER_STEP = 0.25
_LEAST_STEP_NS = 10.0


def plan_steps(params: PfcParams, fastest_bps: float) -> StepPlan:
    """Return the step for these buffers: a third of the loop, less where a link would fill them."""
    xon_ns = params.xon_bytes / (fastest_bps / BPS_PER_BYTE_PER_NS)
    loop_ns = float(params.loop_delay_ns)
    longest_ns = max(_MOST_BUDGET_PER_STEP * xon_ns, _LEAST_STEP_NS)
    step_ns = min(max(loop_ns / _STEPS_PER_LOOP, _LEAST_STEP_NS), longest_ns)
    return StepPlan(step_ns, min(round(_LOOPS_PER_PAUSE * loop_ns / step_ns), MAX_DELAY_STEPS))


MAX_DELAY_STEPS = 62  # of the 64 bits that remember a pause


def build_tables(
    capacity_bps: Floats, params: PfcParams, *, time_scale: int, num_slots: int, stride: int
) -> SteppedTables:
    """Return tables without any flow."""
    plan = plan_steps(params, float(capacity_bps.max()))
    step_ns = plan.step_ns * time_scale
    channels = np.zeros(len(capacity_bps), CHANNEL)
    channels["capacity"] = capacity_bps / BPS_PER_BYTE_PER_NS * step_ns
    state = np.zeros(1, STATE)
    state["step_ns"] = step_ns
    state["victim_share"], state["full_share"] = VICTIM_SHARE, FULL_SHARE
    state["sorted_step"] = -1
    state["xoff_bytes"] = params.xoff_bytes * time_scale
    state["xon_bytes"] = params.xon_bytes * time_scale
    state["delay_steps"] = plan.delay_steps
    state["pauses_queue_pair"] = params.pauses_queue_pair
    return SteppedTables(
        flows=np.zeros(num_slots, FLOW),
        path=np.zeros(num_slots * stride, np.int32),
        queued=np.zeros(num_slots * stride),
        channels=channels,
        active=np.zeros(num_slots, np.int32),
        scratch=np.zeros(num_slots, np.int32),
        hot_channels=np.zeros(len(capacity_bps), np.int32),
        unused=np.arange(num_slots, dtype=np.int32)[::-1].copy(),
        done=np.zeros(num_slots, DONE),
        state=state,
    )


def copy_tables(tables: SteppedTables) -> SteppedTables:
    """Return tables of their own memory with the same content."""
    return SteppedTables._make(array.copy() for array in tables)


def grow_tables(tables: SteppedTables, *, num_slots: int, stride: int) -> SteppedTables:
    """Return tables with more slots, longer rows of hops, or both; slots keep their numbers."""
    num_unused = tables.num_slots - int(tables.state["num_active"][0])
    added = np.arange(tables.num_slots, num_slots, dtype=np.int32)[::-1]
    return tables._replace(
        flows=_extended(tables.flows, num_slots),
        path=_widened(tables.path, tables.stride, num_slots, stride),
        queued=_widened(tables.queued, tables.stride, num_slots, stride),
        active=_extended(tables.active, num_slots),
        scratch=np.zeros(num_slots, np.int32),
        unused=_extended(np.concatenate([added, tables.unused[:num_unused]]), num_slots),
        done=np.zeros(num_slots, DONE),
    )


def step_from(instant_ns: int, step_ns: float) -> int:
    """Return the first step that begins at or after an instant."""
    return math.ceil(instant_ns / step_ns)


def _extended(array: Array, length: int) -> Array:
    longer = np.zeros(length, array.dtype)
    longer[: len(array)] = array
    return longer


def _widened(array: Array, old_stride: int, num_slots: int, stride: int) -> Array:
    wider = np.zeros((num_slots, stride), array.dtype)
    rows = array.reshape(-1, old_stride)
    wider[: len(rows), :old_stride] = rows
    return wider.reshape(-1)
