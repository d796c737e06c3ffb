"""Victims of pauses, counted alike by both engines: cases worked out by hand.

A victim is held below its fair share of the NIC for more than 5 % of its time, and meanwhile has a
full channel of its own for less than that. Links of 400 Gbit/s, 50 bytes per ns.
"""

import numpy as np
import pytest
from flow_runs import Flow, end_instants_ns

from kvfabric.fabric.engines.choice import PFC, PFC_STEPPED, make_pausing_engine

LINK_BPS = 400e9
MB = 10**6
BUSY, FREE = 10, 11  # channels to two targets
BOTH_ENGINES = pytest.mark.parametrize("name", [PFC, PFC_STEPPED])


def num_victims(name: str, flows: list[Flow]) -> int:
    engine = make_pausing_engine(name, np.full(12, LINK_BPS))
    end_instants_ns(engine, flows, checks=True)
    return engine.num_victims()


def crowd(start_ns: int, num_bytes: int) -> list[Flow]:
    """Return four flows of NICs 1 to 4 that meet at ``BUSY``."""
    return [(start_ns, [nic, BUSY], num_bytes) for nic in range(1, 5)]


@BOTH_ENGINES
def test_flow_beside_one_that_waits_for_a_full_channel_is_a_victim(name: str) -> None:
    """``BUSY`` has 10 bytes per ns for each of five NICs; NIC 0, paused as a whole, sends 10 + 10.

    Its fair share is 25. Of the two, only the flow to ``FREE`` has no full channel.
    """
    flows = [(0, [0, BUSY], 20 * MB), (0, [0, FREE], 20 * MB), *crowd(0, 20 * MB)]
    assert num_victims(name, flows) == 1


@BOTH_ENGINES
def test_flows_that_wait_for_their_own_channel_are_none(name: str) -> None:
    assert num_victims(name, crowd(0, 20 * MB)) == 0


@BOTH_ENGINES
def test_flows_at_their_fair_share_are_none(name: str) -> None:
    """Two of one NIC, to two targets: half the rate of the port each, and no queue."""
    assert num_victims(name, [(0, [0, BUSY], 20 * MB), (0, [0, FREE], 20 * MB)]) == 0


@BOTH_ENGINES
def test_channel_full_at_full_speed_does_not_excuse_a_later_pause(name: str) -> None:
    """The flow to ``FREE`` first has its NIC alone: it fills its channels and is not held back."""
    held = [(0, [0, FREE], 60 * MB), (600_000, [0, BUSY], 20 * MB)]
    assert num_victims(name, [*held, *crowd(600_000, 20 * MB)]) == 1


@BOTH_ENGINES
def test_flow_held_back_for_little_of_its_time_is_none(name: str) -> None:
    """200 MB take 4 ms; the crowd of 0.5 MB each holds them back for 50 us, a bit over 1 %."""
    held = [(0, [0, FREE], 200 * MB), (600_000, [0, BUSY], MB // 2)]
    assert num_victims(name, [*held, *crowd(600_000, MB // 2)]) == 0
