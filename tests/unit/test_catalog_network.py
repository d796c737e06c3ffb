import pytest

from kvfabric.catalog.gpus import gpu_names
from kvfabric.catalog.nics import NICS, smallest_nic
from kvfabric.catalog.optics import CABLE_PARTS, CableKind, smallest_part
from kvfabric.catalog.prices import PRICE_BOOK, Price
from kvfabric.catalog.switches import CLASSES, SWITCHES, smallest_class
from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind

GBIT = 10**9


@pytest.mark.parametrize(
    ("key", "gbit", "radix"),
    [
        # Source: From ATOP to ZCube, SIGCOMM 2025, Table 7
        ("12.8t", 400, 32),
        ("12.8t", 200, 64),
        ("25.6t", 400, 64),
        ("25.6t", 200, 128),
        ("51.2t", 800, 64),
        ("51.2t", 400, 128),
        ("51.2t", 200, 256),
    ],
)
def test_radix_follows_from_capacity_and_port_rate(key: str, gbit: int, radix: int) -> None:
    assert SWITCHES[key].radix_at(gbit * GBIT) == radix


def test_rate_a_cage_cannot_be_split_into_is_refused() -> None:
    with pytest.raises(ConfigError, match="Write one of 800 Gbit/s, 400"):
        SWITCHES["51.2t"].radix_at(300 * GBIT)


def test_smallest_class_leaves_ports_over_rather_than_missing() -> None:
    assert smallest_class(48 * 200 * GBIT).key == "12.8t"
    assert smallest_class(SWITCHES["51.2t"].capacity_bps).key == "51.2t"


def test_switch_larger_than_any_is_refused() -> None:
    with pytest.raises(ConfigError, match="largest"):
        smallest_class(60 * 10**12)


def test_published_port_latency_is_kept() -> None:
    assert SWITCHES["cx864e-n"].port_latency_ns == 560


def test_slower_link_takes_the_next_faster_part() -> None:
    assert smallest_part(CableKind.OPTIC_END, 100 * GBIT).key == "optic-200g"
    assert smallest_part(CableKind.COPPER, 400 * GBIT).key == "dac-400g"
    with pytest.raises(ConfigError, match=r"1\.6 Tbit/s"):
        smallest_part(CableKind.OPTIC_END, 1600 * GBIT)


def test_nic_is_found_by_ports_and_rate() -> None:
    assert smallest_nic(1, 400 * GBIT).key == "1x400g"
    assert smallest_nic(2, 200 * GBIT).key == "2x200g"
    with pytest.raises(ConfigError, match="no NIC with 4"):
        smallest_nic(4, 100 * GBIT)


def test_price_book_covers_everything_a_bill_may_name() -> None:
    keys = [*(model.key for model in CLASSES), *CABLE_PARTS, *NICS, *gpu_names()]
    assert all(PRICE_BOOK.price(key).source.text for key in keys)


def test_assumed_prices_give_a_reason_and_a_wide_range() -> None:
    for price in PRICE_BOOK.prices.values():
        if price.source.kind is SourceKind.ASSUMED:
            assert len(price.source.text) > 20
            assert price.high_usd >= 2 * price.low_usd


def test_missing_price_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no price for 'gpu'.*1x400g"):
        PRICE_BOOK.price("gpu")


def test_price_range_out_of_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="low <= typical <= high"):
        Price(low_usd=2, typical_usd=1, high_usd=3, source=Source(SourceKind.ASSUMED, "a test"))
