"""Transfers under any flow engine: the ``Network`` port, its counts, and the report on pauses."""

import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.choice import ENGINES, check_engine_takes, make_engine
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.networks.engine_network import EngineNetwork
from kvfabric.fabric.networks.network import FabricNetwork
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.protocol.transfer import RankTransfer, TransferPlan

CLOS = build_topology("clos", 64, radix=32, num_tiers=2, nic_rate_bps=400 * 10**9)
MB = 10**6


def network_of(engine: str) -> EngineNetwork:
    balancer = make_load_balancer("ecmp", CLOS)
    made = make_engine(engine, balancer.channel_capacity_bps)
    return EngineNetwork(balancer, made, payload_bytes=4096, frame_bytes=4160)


def incast(transfer_id: int, num_senders: int) -> TransferPlan:
    parts = [RankTransfer(8 * sender, 63, 20 * MB) for sender in range(num_senders)]
    return TransferPlan(transfer_id, tuple(parts))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_incast_takes_the_time_of_its_bytes_under_every_engine(engine: str) -> None:
    network = network_of(engine)
    network.start(incast(7, 4), 1_000)
    end_ns = network.next_completion_ns()
    while end_ns is not None and not network.advance(end_ns):
        end_ns = network.next_completion_ns()
    assert end_ns == pytest.approx(1_000 + 4 * 20 * MB * 4160 / 4096 / 50, rel=0.01)
    assert network.next_completion_ns() is None
    assert (network.moved_bytes, network.num_flows) == (80 * MB, 4)
    link = network.busiest_links(10**9)[0]
    assert link.name.endswith("-> GPU 63 port 0")
    assert link.carried_bytes == pytest.approx(80 * MB * 4160 / 4096, abs=10)
    network.check_invariants()


@pytest.mark.parametrize("engine", ["pfc", "pfc-stepped"])
def test_pauses_and_queues_are_reported_by_name(engine: str) -> None:
    network = network_of(engine)
    network.start(incast(1, 4), 0)
    while (next_ns := network.next_completion_ns()) is not None:
        network.advance(next_ns)
    report = network.pressure()
    assert report is not None
    assert report.worst_queue_link.endswith("-> GPU 63 port 0")
    assert report.worst_queue_bytes > PfcParams().xon_bytes
    assert report.num_paused_channels > 0
    assert report.longest_paused_link
    assert report.num_victims == 0
    assert (report.unconverged_share is None) == (engine == "pfc-stepped")
    assert report.longest_paused_link in report.sentence()


def test_max_min_agrees_with_the_compiled_network_and_knows_no_pauses() -> None:
    network = network_of("max-min")
    compiled = FabricNetwork(make_load_balancer("ecmp", CLOS), payload_bytes=4096, frame_bytes=4160)
    for port in (network, compiled):
        port.start(incast(1, 3), 0)
        port.start(TransferPlan(2, (RankTransfer(8, 40, 7 * MB),)), 90_000)
    assert network.next_completion_ns() == compiled.next_completion_ns()
    assert network.advance(10**9) == compiled.advance(10**9)
    assert network.pressure() is None


@pytest.mark.parametrize("engine", ENGINES)
def test_cancelling_frees_the_links(engine: str) -> None:
    network = network_of(engine)
    network.start(incast(1, 3), 0)
    network.start(TransferPlan(2, (RankTransfer(40, 63, MB),)), 0)
    network.cancel(1, 10_000)
    network.check_invariants()
    end_ns = network.next_completion_ns()
    assert end_ns is not None
    assert end_ns < 100_000
    assert network.advance(end_ns) == [2]
    network.cancel(2, end_ns)  # it has ended: left alone
    assert network.next_completion_ns() is None


def test_parts_within_a_server_end_at_once() -> None:
    network = network_of("pfc-stepped")
    network.start(TransferPlan(3, (RankTransfer(0, 1, MB),)), 5)
    assert network.next_completion_ns() == 5
    assert network.advance(5) == [3]
    assert network.num_flows == 0


def test_what_no_engine_can_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown flow engine 'dcqcn'"):
        make_engine("dcqcn", CLOS.channel_capacity_bps)
    with pytest.raises(UnsupportedError, match="2 priorities"):
        make_engine("pfc-stepped", CLOS.channel_capacity_bps, PfcParams(num_priorities=2))
    spray = make_load_balancer("spray", CLOS)
    check_engine_takes("max-min", spray)
    with pytest.raises(UnsupportedError, match="no port of a pool can be paused"):
        check_engine_takes("pfc", spray)
