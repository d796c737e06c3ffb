import json

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.measured.measures import topology_report
from kvfabric.plan.bom import BillOfMaterials, bill_of_materials, bom_to_dict

GBIT = 10**9


def bom(kind: str, num_gpus: int = 1024, radix: int | None = None) -> BillOfMaterials:
    topology = build_topology(kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT)
    return bill_of_materials(topology, PRICE_BOOK)


def test_lines_name_the_parts_of_a_rail_optimized_fabric() -> None:
    lines = {(line.key, line.place): line.count for line in bom("roft").lines}
    assert lines == {
        ("51.2t", "leaf"): 16,
        ("51.2t", "spine"): 8,
        ("optic-400g", "host"): 2048,
        ("mpo-trunk", "host"): 1024,
        ("optic-400g", "fabric"): 2048,
        ("mpo-trunk", "fabric"): 1024,
        ("1x400g", "host"): 1024,
    }


def test_lines_name_the_parts_of_a_zcube() -> None:
    lines = {(line.key, line.place): line.count for line in bom("zcube").lines}
    assert lines == {
        ("51.2t", "multi-rail leaf"): 8,
        ("51.2t", "single-rail leaf"): 8,
        ("optic-200g", "host"): 2048,
        ("mpo-trunk", "host"): 1024,
        ("dac-200g", "host"): 1024,
        ("optic-200g", "fabric"): 2048,
        ("mpo-trunk", "fabric"): 1024,
        ("2x200g", "host"): 1024,
    }


def test_lines_name_the_parts_of_a_dual_plane_fabric() -> None:
    lines = {(line.key, line.place): line.count for line in bom("hpn").lines}
    assert lines == {
        ("51.2t", "leaf"): 16,
        ("51.2t", "aggregation"): 8,
        ("optic-200g", "host"): 4096,
        ("mpo-trunk", "host"): 2048,
        ("optic-400g", "fabric"): 2048,
        ("mpo-trunk", "fabric"): 1024,
        ("2x200g", "host"): 1024,
    }


def test_nic_with_more_ports_than_the_catalog_has_counts_as_nics_of_one_port() -> None:
    topology = build_topology(
        "multi-plane", 64, nic_rate_bps=800 * GBIT, shape={"planes": 4, "ports": 4}
    )
    bill = bill_of_materials(topology, PRICE_BOOK)
    assert [(line.key, line.count) for line in bill.lines if line.category == "nic"] == [
        ("1x200g", 256)
    ]


def test_one_layer_saves_a_third_of_the_switches_of_two_tiers() -> None:
    # Source: z.ai/blog/zcube 2026-05-20: 2N/R against 3N/R switches
    assert bom("zcube").count("switch") * 3 == bom("roft").count("switch") * 2


def test_cost_is_the_sum_of_its_categories() -> None:
    bill = bom("clos")
    parts = [bill.cost(c).typical_usd for c in ("switch", "optic", "fibre", "copper", "nic")]
    assert bill.cost().typical_usd == sum(parts)
    assert bill.cost().low_usd < bill.cost().typical_usd < bill.cost().high_usd


def test_power_counts_what_is_published_and_names_the_rest() -> None:
    bill = bom("clos")
    # Source: NVIDIA MMS4X00-NS400, 9 W at most; 2 for each of 1,024 fibre cables
    assert bill.known_power_w() == 24 * 940 + 2048 * 9
    assert bill.parts_of_unknown_power() == ("1x400g",)


def test_dictionary_is_json_and_says_what_is_in_and_out() -> None:
    text = bom_to_dict(bom("zcube"))
    assert json.loads(json.dumps(text)) == text
    assert "GPUs and servers" in str(text["excluded"])
    assert text["price_date"] == "2026-11-30"


def test_topology_report_is_json_and_counts_the_graph() -> None:
    report = topology_report(build_topology("zcube", 1024, nic_rate_bps=400 * GBIT))
    assert json.loads(json.dumps(report)) == report
    assert report["switches_by_role"] == {"multi-rail leaf": 8, "single-rail leaf": 8}
    assert (report["links_copper"], report["links_fibre"], report["optics"]) == (1024, 2048, 4096)
    assert (report["nic_ports"], report["ports_used_per_switch_max"]) == (2048, 256)
    assert (report["tiers"], report["diameter"], report["switch_hops_max"]) == (1, 3, 2)
