import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.failures import Failures, failed_plane, failed_port, parse_failures, without
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.connectivity import gpu_names
from kvfabric.fabric.measured.measures import switch_distances
from kvfabric.fabric.routes.load_balancing import make_load_balancer

GBIT = 10**9


def fabric(kind: str = "roft", num_gpus: int = 128, radix: int = 32) -> Topology:
    return build_topology(kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT)


def after(topology: Topology, *texts: str) -> Topology:
    return without(topology, parse_failures(topology, texts))


def test_nothing_failed_leaves_the_fabric_as_it_is() -> None:
    topology = fabric()
    left = without(topology, Failures())
    assert (left.name, left.num_links) == (topology.name, topology.num_links)
    assert left.access_links.tolist() == topology.access_links.tolist()


def test_failed_switch_has_no_cable_left_and_keeps_its_number() -> None:
    topology = fabric()
    left = after(topology, "switch:leaf 1")
    assert left.switches[1] == topology.switches[1]
    assert left.ports_used()[1] == 0
    assert left.name.endswith("without leaf 1")
    left.check_invariants()


def test_failed_spine_takes_its_cables_only() -> None:
    topology = fabric()
    left = after(topology, "switch:spine 0")
    spine = next(s for s, switch in enumerate(topology.switches) if switch.name == "spine 0")
    assert topology.num_links - left.num_links == topology.ports_used()[spine]
    assert left.access_switches.tolist() == topology.access_switches.tolist()


def test_ports_of_a_failed_switch_reach_nothing_and_not_each_other() -> None:
    left = after(fabric("zcube", 64, 16), "switch:multi-rail leaf 0")
    stubs = left.access_switches[[0, 8], 0]
    distances = switch_distances(left)
    assert len(set(stubs.tolist())) == 2
    assert (distances[stubs].astype(int) == 255).sum() == 2 * (left.num_switches - 1)


def test_failed_cable_is_one_of_the_parallel_ones() -> None:
    topology = fabric("zcube", 128, 64)  # 8 cables per pair
    left = after(topology, "link:multi-rail leaf 0 - single-rail leaf 1 #2")
    assert topology.num_links - left.num_links == 1
    assert "multi-rail leaf 0 - single-rail leaf 1 #2" in left.name


def test_traffic_takes_the_port_that_is_left() -> None:
    topology = fabric("zcube", 64, 16)
    left = without(topology, failed_port(topology, 0, 1))
    (part,) = make_load_balancer("ecmp", left).route(0, 63, 1000, 0)
    assert part.num_bytes == 1000
    assert left.channel_name(part.channels[0]) == "GPU 0 port 0 -> multi-rail leaf 0"


def test_gpu_without_a_nic_sends_and_receives_through_its_server() -> None:
    left = after(fabric(), "port:GPU 0 port 0")
    balancer = make_load_balancer("ecmp", left)
    (sent,), (received,) = balancer.route(0, 64, 1000, 0), balancer.route(64, 0, 1000, 0)
    assert left.channel_name(sent.channels[0]).startswith("GPU 1 port 0")
    assert left.channel_name(received.channels[-1]).endswith("-> GPU 1 port 0")


def test_failed_plane_leaves_the_other() -> None:
    topology = fabric("hpn", 128, 32)
    left = without(topology, failed_plane(topology, 1))
    (part,) = make_load_balancer("ecmp", left).route(0, 127, 1000, 0)
    assert part.num_bytes == 1000


def test_gpus_cut_off_are_named_in_one_error() -> None:
    topology = fabric("clos", 128)  # whole servers on one leaf
    with pytest.raises(ConfigError, match=r"without leaf 0, GPUs 0-15 are cut off"):
        after(topology, "switch:leaf 0")


def test_all_switches_failed_cuts_everyone_off() -> None:
    topology = fabric("zcube", 64, 16)
    with pytest.raises(ConfigError, match="cut off"):
        without(topology, failed_plane(topology, 0))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("leaf 3", "switch:leaf 3"),
        ("router:leaf 3", "switch:leaf 3"),
        ("switch:leaf 99", r"leaf 0-7, spine 0-3"),
        ("switch:", "switch:leaf 3"),
        ("link:leaf 0 - leaf 1", "no cable"),
        ("link:leaf 0 - spine 0 #7", "these have 4 cables"),
        ("link:leaf 0", "for the second"),
        ("link:leaf 0 - spine 0 #x", "for the second"),
        ("port:GPU 128 port 0", "up to port:GPU 127 port 0"),
        ("port:17", "up to port:GPU 127 port 0"),
        ("plane:1", "plane:0 to plane:0"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        parse_failures(fabric(), [text])
    assert repr(text) in str(caught.value)


def test_names_are_those_of_reports() -> None:
    topology = fabric()
    link = parse_failures(topology, ["link:leaf 0 -> spine 1"])
    assert [topology.channel_name(2 * link_id) for link_id in link.links] == ["leaf 0 -> spine 1"]
    port = parse_failures(topology, ["link:GPU 3 port 0 -> leaf 1"])
    assert port == parse_failures(topology, ["port:GPU 3 port 0"]) == failed_port(topology, 3, 0)


def test_long_lists_of_gpus_are_cut() -> None:
    assert gpu_names(list(range(0, 40, 2))).endswith("12, 14 and more, 20 in all, are")
    assert gpu_names([3]) == "GPU 3 is"
