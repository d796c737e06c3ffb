from collections.abc import Mapping

import pytest

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.measured.bisection import bisection_bps

GBIT = 10**9


def share(
    kind: str,
    num_gpus: int,
    radix: int,
    *,
    oversubscription: float = 1.0,
    shape: Mapping[str, int] | None = None,
) -> float:
    """Return the bisection bandwidth over what half of the NICs can send."""
    topology = build_topology(
        kind,
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        oversubscription=oversubscription,
        shape=shape or {},
    )
    found = bisection_bps(topology)
    assert found is not None
    return found / (num_gpus // 2 * 400 * GBIT)


@pytest.mark.parametrize(
    ("kind", "num_gpus", "radix"),
    [
        ("clos", 128, 16),
        ("clos", 1024, 16),
        ("roft", 1024, 16),
        ("rail-only", 256, 8),
        ("multi-plane", 256, 8),
        ("hpn", 256, 32),
        ("zcube", 64, 16),
    ],
)
def test_full_fabric_without_oversubscription_has_full_bisection(
    kind: str, num_gpus: int, radix: int
) -> None:
    assert share(kind, num_gpus, radix) == 1


def test_oversubscribed_clos_has_that_share() -> None:
    # 3:1 on 32 ports; halves of the servers are halves of the leaves
    assert share("clos", 192, 32, oversubscription=3) == pytest.approx(1 / 3)


def test_zcube_with_cores_has_half() -> None:
    # each of n^3 GPUs has 2 x 200G, each of n^2 multi-rail leaves n x 200G to the cores: half
    assert share("zcube", 512, 24) == 0.5


def test_hpn_tapers_toward_the_cores() -> None:
    # a pod of 16 switches per plane sends 2 x 400G each to the cores, for 192 GPUs of 2 x 200G
    shape = {"gpus_per_leaf": 24, "uplinks": 4, "core_uplinks": 8}
    assert share("hpn", 768, 32, shape=shape) == pytest.approx(1 / 3)


def test_middle_server_of_an_odd_number_is_in_the_second_half() -> None:
    topology = build_topology("clos", 24, radix=32, nic_rate_bps=400 * GBIT)
    assert bisection_bps(topology) == 8 * 400 * GBIT


def test_single_server_has_no_halves() -> None:
    assert bisection_bps(build_topology("clos", 8, radix=8, nic_rate_bps=400 * GBIT)) is None
