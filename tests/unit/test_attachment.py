import pytest

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.measured.attachment import Attachment, attachment

GBIT = 10**9


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("clos", Attachment.SINGLE_RAIL),
        ("roft", Attachment.MULTI_RAIL),
        ("rail-only", Attachment.MULTI_RAIL),
        ("multi-plane", Attachment.MULTI_RAIL),
        ("hpn", Attachment.MULTI_RAIL),
        ("zcube", Attachment.HYBRID),
    ],
)
def test_attachment_is_read_off_the_graph(kind: str, expected: Attachment) -> None:
    topology = build_topology(kind, 256, radix=32, nic_rate_bps=400 * GBIT)
    assert attachment(topology) is expected


def test_rails_that_meet_on_one_switch_are_a_single_rail() -> None:
    topology = build_topology("roft", 64, radix=64, nic_rate_bps=400 * GBIT)
    assert attachment(topology) is Attachment.SINGLE_RAIL


def test_routers_that_take_half_a_server_are_straddled() -> None:
    topology = build_topology(
        "dragonfly", 64, radix=16, nic_rate_bps=400 * GBIT, shape={"p": 4, "h": 2}
    )
    assert attachment(topology) is Attachment.STRADDLING
