"""What may happen at an instant, in which order, and the ids of what a driver starts itself."""

from enum import IntEnum


class Phase(IntEnum):
    """Order of events at the same instant; steps are planned and started after all of them."""

    STEP_DONE = 0
    TRANSFER_DONE = 1
    READ_DONE = 2
    WORKER_LOST = 3
    WORKER_JOINED = 4
    LAYERS_READY = 5
    TRANSFER_START = 6
    CANCEL = 7
    DEADLINE = 8
    ARRIVAL = 9
    PLAN_AHEAD = 10


NEVER = 1 << 62
"""The instant of what is not expected to happen."""

MAX_LAYER_GROUPS = 1 << 10
FIRST_STEP_TRANSFER = 1 << 40
"""Ids of what steps exchange, out of the way of hand-offs."""
