"""Compiled routing where the rules alone say what must come out."""

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.fabric.routes.router import Router
from kvfabric.protocol.transfer import RankTransfer

GBIT = 10**9


def fabric(kind: str = "clos", num_gpus: int = 512) -> Topology:
    return build_topology(kind, num_gpus, radix=32, nic_rate_bps=400 * GBIT)


def router_of(policy: str, topology: Topology, queue_pairs: int = 1) -> Router:
    return Router(make_load_balancer(policy, topology, queue_pairs=queue_pairs).rules)


def paths_of(router: Router, num_new: int) -> list[list[int]]:
    entries = router.new[["first_hop", "num_hops"]][:num_new].tolist()
    return [router.path[first : first + num].tolist() for first, num in entries]


def test_transfer_within_a_server_has_bytes_but_no_flows() -> None:
    assert router_of("ecmp", fabric()).route(1, [RankTransfer(0, 7, 1000)], 0) == (0, 1000)


def test_transfer_of_no_messages_has_no_flows() -> None:
    assert router_of("assigned", fabric()).route(1, [], 0) == (0, 0)


def test_frames_round_up_per_flow() -> None:
    balancer = make_load_balancer("spray", fabric())
    router = Router(balancer.rules, payload_bytes=4096, frame_bytes=4168)
    num_new, _ = router.route(1, [RankTransfer(0, 511, 4097)], 0)
    assert router.new["payload_bytes"][:num_new].tolist() == [4097]
    assert router.new["size_bytes"][:num_new].tolist() == [4170]  # 4097 x 4168 / 4096 = 4169.02


def test_longest_path_counts_the_channels_of_the_last_transfer() -> None:
    router = router_of("ecmp", fabric())
    router.route(1, [RankTransfer(0, 511, 1000), RankTransfer(0, 8, 1000)], 0)
    assert router.longest_hops == 4  # NIC, leaf, spine, leaf, NIC
    router.route(2, [RankTransfer(0, 8, 1000)], 0)
    assert router.longest_hops == 2


def test_assigned_fills_all_uplinks_before_it_doubles_one() -> None:
    router = router_of("assigned", fabric())
    num_new, _ = router.route(1, [RankTransfer(gpu, 496 + gpu, 1000) for gpu in range(16)], 0)
    paths = paths_of(router, num_new)
    assert len({path[1] for path in paths}) == len({path[2] for path in paths}) == 16
    assert router.num_loaded_channels == 32


def test_queue_pairs_are_dealt_over_the_ports_in_turn() -> None:
    topology = build_topology("zcube", 64, radix=16, nic_rate_bps=400 * GBIT)
    router = router_of("ecmp", topology, queue_pairs=4)
    num_new, _ = router.route(1, [RankTransfer(0, 63, 2)], 0)
    assert len({path[0] for path in paths_of(router, num_new)}) == num_new == 2
