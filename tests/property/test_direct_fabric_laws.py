"""Laws of BCube, the recursive ZCube and direct networks of any size that can be built."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import BUILDERS, build_topology
from kvfabric.fabric.graph import Medium, Topology
from kvfabric.fabric.measured.measures import path_lengths
from kvfabric.plan.bom import bill_of_materials

GBIT = 10**9
# the most switches a shortest path may pass; None where chance decides
HOPS = {"dragonfly": 4, "slim-fly": 3, "jellyfish": None}


@st.composite
def direct_networks(draw: st.DrawFn) -> tuple[Topology, int | None]:
    kind = draw(st.sampled_from(sorted(HOPS)))
    shape = {"seed": draw(st.integers(0, 99))} if kind == "jellyfish" else {}
    num_gpus = draw(st.integers(1, 400))
    try:
        topology = build_topology(
            kind,
            num_gpus,
            radix=draw(st.integers(1, 64)),
            nic_rate_bps=400 * GBIT,
            gpus_per_server=1,
            shape=shape,
        )
    except ConfigError:
        assume(condition=False)
    return topology, HOPS[kind]


@st.composite
def fewer_groups(draw: st.DrawFn) -> tuple[Topology, int]:
    a, h = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    g = draw(st.integers(1, a * h + 1))
    topology = build_topology(
        "dragonfly",
        a * g,
        radix=16,
        nic_rate_bps=400 * GBIT,
        gpus_per_server=1,
        shape={"a": a, "p": 1, "h": h, "g": g},
    )
    return topology, HOPS["dragonfly"] or 0


@st.composite
def cubes(draw: st.DrawFn) -> tuple[Topology, int]:
    kind, k = draw(st.sampled_from(["bcube", "zcube-recursive"])), draw(st.integers(2, 4))
    n = draw(st.integers(2, {2: 16, 3: 6, 4: 4}[k]))
    topology = build_topology(
        kind,
        n**k,
        radix=64,
        nic_rate_bps=k * 200 * GBIT,
        gpus_per_server=n,
        shape={"k": k},
    )
    return topology, k


@settings(deadline=None)
@given(st.one_of(direct_networks(), fewer_groups(), cubes()))
def test_ports_suffice_all_are_joined_and_the_bill_equals_the_graph(
    built: tuple[Topology, int | None],
) -> None:
    topology, hops = built
    topology.check_invariants()
    lengths = path_lengths(topology)
    assert lengths.average_links is not None
    assert hops is None or lengths.switch_hops_max <= hops
    bill = bill_of_materials(topology, PRICE_BOOK)
    fibre = int(np.count_nonzero(topology.links.medium == Medium.FIBRE))
    assert bill.count("optic") == 2 * fibre
    assert bill.count("fibre") == fibre
    assert bill.count("copper") == topology.num_links - fibre
    assert bill.count("switch") == topology.num_switches


def test_every_kind_states_its_shape_keys() -> None:
    known = {kind: BUILDERS[kind].shape_keys for kind in [*HOPS, "bcube", "zcube-recursive"]}
    assert known == {
        "dragonfly": ("a", "p", "h", "g"),
        "slim-fly": ("q", "p"),
        "jellyfish": ("switches", "r", "seed"),
        "bcube": ("k",),
        "zcube-recursive": ("k",),
    }
