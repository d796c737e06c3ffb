"""Transfers over a fabric: when they are done, what cancelling leaves, which links are named."""

import pytest

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.networks.network import FabricNetwork
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.protocol.transfer import RankTransfer, TransferPlan

GBIT = 10**9
POLICIES = ("ecmp", "spray", "assigned")


def network_of(policy: str = "assigned", *, payload: int = 1, frame: int = 1) -> FabricNetwork:
    topology = build_topology("roft", 64, radix=16, nic_rate_bps=400 * GBIT)
    balancer = make_load_balancer(policy, topology, seed=3)
    return FabricNetwork(balancer, payload_bytes=payload, frame_bytes=frame)


def transfer(transfer_id: int, *parts: tuple[int, int, int]) -> TransferPlan:
    return TransferPlan(transfer_id, tuple(RankTransfer(*part) for part in parts))


def run_out(network: FabricNetwork) -> list[tuple[int, int]]:
    """Return ``(instant, transfer id)`` of everything that still completes."""
    done: list[tuple[int, int]] = []
    while (now_ns := network.next_completion_ns()) is not None:
        done += [(now_ns, transfer_id) for transfer_id in network.advance(now_ns)]
    return done


def test_idle_network_has_nothing_to_come() -> None:
    network = network_of()
    assert network.next_completion_ns() is None
    assert list(network.advance(100)) == []
    assert [link.carried_bytes for link in network.busiest_links(100)] == [0]


@pytest.mark.parametrize("policy", POLICIES)
def test_lone_transfer_takes_its_bytes_over_the_line_rate(policy: str) -> None:
    network = network_of(policy)
    network.start(transfer(5, (0, 40, 1_000_000)), 70)  # 8 Mbit at 400 Gbit/s: 20 us
    assert run_out(network) == [(70 + 20_000, 5)]


def test_frames_count_on_the_wire() -> None:
    network = network_of(payload=4096, frame=4160)
    network.start(transfer(5, (0, 40, 4_096_000)), 0)
    assert run_out(network) == [(83_200, 5)]  # 4.16 MB at 50 bytes/ns
    assert network.moved_bytes == 4_096_000


def test_transfer_is_done_with_its_last_part() -> None:
    network = network_of()
    network.start(transfer(5, (0, 40, 50_000), (1, 41, 100_000)), 0)
    assert run_out(network) == [(2000, 5)]


def test_two_transfers_out_of_one_nic_share_it() -> None:
    network = network_of()
    network.start(transfer(1, (0, 40, 50_000)), 0)
    network.start(transfer(2, (0, 48, 50_000)), 0)
    assert run_out(network) == [(2000, 1), (2000, 2)]


def test_transfer_within_a_server_is_done_at_once() -> None:
    network = network_of()
    network.start(transfer(5, (0, 7, 10**9)), 70)
    assert run_out(network) == [(70, 5)]
    assert network.num_flows == 0


def test_transfer_of_no_parts_is_done_at_once() -> None:
    network = network_of()
    network.start(transfer(5), 70)
    assert run_out(network) == [(70, 5)]


def test_cancelled_transfer_never_completes() -> None:
    network = network_of()
    network.start(transfer(5, (0, 40, 1_000_000)), 0)
    network.cancel(5, 1000)
    assert run_out(network) == []
    network.check_invariants()


def test_cancelled_transfer_gives_its_share_to_the_others() -> None:
    network = network_of()
    network.start(transfer(1, (0, 40, 50_000)), 0)
    network.start(transfer(2, (0, 48, 50_000)), 0)
    network.cancel(2, 1000)  # 25,000 bytes of the first are left, now at the full rate
    assert run_out(network) == [(1500, 1)]


def test_cancel_of_an_ended_transfer_is_left_alone() -> None:
    network = network_of()
    network.start(transfer(5, (0, 40, 1000)), 0)
    run_out(network)
    network.cancel(5, 1000)
    network.check_invariants()


def test_cancelled_transfer_within_a_server_never_completes() -> None:
    network = network_of()
    network.start(transfer(5, (0, 7, 1000)), 70)
    network.cancel(5, 70)
    assert run_out(network) == []


def test_id_may_be_used_again_after_its_transfer_is_done() -> None:
    network = network_of()
    for start_ns in (0, 100):
        network.start(transfer(5, (0, 40, 1000)), start_ns)
        assert run_out(network) == [(start_ns + 20, 5)]


def test_id_of_a_moving_transfer_is_refused() -> None:
    network = network_of()
    network.start(transfer(5, (0, 40, 1000)), 0)
    with pytest.raises(AssertionError, match="unique"):
        network.start(transfer(5, (0, 48, 1000)), 0)


def test_busiest_links_are_those_that_carried_most() -> None:
    network = network_of()
    network.start(transfer(1, (0, 8, 50_000)), 0)
    network.start(transfer(2, (8, 16, 150_000)), 0)
    run_out(network)
    first, second = network.busiest_links(4000, count=2)
    assert first.carried_bytes == 150_000
    assert first.utilization == pytest.approx(0.75)
    assert [first.name, second.name] == ["GPU 8 port 0 -> leaf 0", "leaf 0 -> GPU 16 port 0"]


def test_busiest_links_of_no_time_are_none() -> None:
    assert network_of().busiest_links(0) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_follows_the_transfers_under_way(policy: str) -> None:
    """Slots and groups are used again, however many transfers have come and gone."""
    network = network_of(policy)
    for transfer_id in range(2000):
        parts = [(rank, 40 + rank, 1000 + transfer_id) for rank in range(8)]
        network.start(transfer(transfer_id, *parts), transfer_id * 1000)
        assert run_out(network)[-1][1] == transfer_id
    assert network._flows.tables.num_slots == 64
    assert len(network._transfer_of_group) == 1
    assert network._group_of_transfer == {}
    network.check_invariants()


def test_transfer_with_many_parts_outgrows_the_first_buffers() -> None:
    network = network_of("ecmp")
    network.start(transfer(1, *((gpu, 63 - gpu, 50_000) for gpu in range(24))), 0)
    network.check_invariants()
    assert run_out(network)[-1][1] == 1
    assert network.num_flows == 24


def test_start_past_a_completion_keeps_it_for_the_next_advance() -> None:
    network = network_of()
    network.start(transfer(1, (0, 40, 50_000)), 0)
    network.start(transfer(2, (1, 7, 50_000)), 1500)
    network.start(transfer(3, (2, 48, 50_000)), 2000)
    assert network.next_completion_ns() == 1000
    assert list(network.advance(2000)) == [1, 2]
    assert run_out(network) == [(3000, 3)]


def test_cancel_of_a_transfer_that_ended_unseen_drops_it() -> None:
    network = network_of()
    network.start(transfer(1, (0, 40, 50_000)), 0)
    network.cancel(1, 2000)
    assert run_out(network) == []
    network.check_invariants()


def test_time_does_not_go_back() -> None:
    network = network_of()
    network.advance(10)
    with pytest.raises(AssertionError, match="cannot go back"):
        network.start(transfer(1, (0, 40, 1000)), 9)
