"""Two small grids of the sweep: load by load balancing, and hit rate by NIC rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvfabric.plan.claims.cells import BALANCINGS, FABRIC
from kvfabric.plan.claims.changes import Change
from kvfabric.plan.claims.settings import ROFT, STATIC, ZCUBE, RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Changes by two settings, under one engine.

    Attributes:
        title: what it shows.
        engine: ``max-min`` or ``pfc``.
        row_name: what rows vary.
        rows: names of the rows.
        columns: names of the columns.
        changes: by row and column; None where nothing was run.
    """

    title: str
    engine: str
    row_name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    changes: tuple[tuple[Change | None, ...], ...]


def grids_of(base: RunSettings, changes: Sequence[Change]) -> tuple[Grid, ...]:
    """Return the grids that a sweep has filled, each under each engine."""
    engines = tuple(dict.fromkeys(change.engine for change in changes))
    return tuple(grid for engine in engines for grid in _grids(base, changes, engine))


def _grids(base: RunSettings, changes: Sequence[Change], engine: str) -> Iterator[Grid]:
    by_sides = {
        (change.cell.before, change.cell.after): change
        for change in changes
        if change.engine == engine and change.cell.kind == FABRIC
    }
    static = {"fabric": ZCUBE, "balancing": STATIC, "queue_pairs": 1}

    def pair(before: dict[str, object], after: dict[str, object], **both: object) -> Change | None:
        shared = replace(base, **both)  # type: ignore[arg-type]
        left = replace(shared, fabric=ROFT, **before)  # type: ignore[arg-type]
        right = replace(shared, **(static | after))  # type: ignore[arg-type]
        return by_sides.get((left, right))

    loads = sorted(
        {
            c.cell.before.load
            for c in changes
            if c.cell.before.users is None and pair({}, {}, load=c.cell.before.load)
        }
    )
    policies: tuple[tuple[str, str, int, str], ...] = (
        ("ecmp, 1 queue pair", "ecmp", 1, STATIC),
        *BALANCINGS,
    )
    yield Grid(
        title="TTFT p99 from RoFT to ZCube, by balancing of RoFT and load",
        engine=engine,
        row_name="RoFT balancing",
        rows=tuple(policy[0] for policy in policies),
        columns=tuple(f"{load:.0%} load" for load in loads),
        changes=tuple(
            tuple(
                pair({"balancing": policy, "queue_pairs": pairs}, {"balancing": zcube}, load=load)
                for load in loads
            )
            for _, policy, pairs, zcube in policies
        ),
    )
    nics = sorted({c.cell.before.nic_gbps for c in changes})
    open_loads = {c.cell.before.load for c in changes if c.cell.before.users is None}
    all_loads = sorted(
        load for load in open_loads if any(pair({}, {}, load=load, nic_gbps=nic) for nic in nics)
    )
    yield Grid(
        title="TTFT p99 from RoFT (ecmp, 1 queue pair) to ZCube, by NIC and load",
        engine=engine,
        row_name="NIC, ZCube routes",
        rows=tuple(
            f"{nic} Gbit/s, {name}" for nic in nics for name in ("static", "assigned (best case)")
        ),
        columns=tuple(f"{load:.0%} load" for load in all_loads),
        changes=tuple(
            tuple(pair({}, {"balancing": zcube}, load=load, nic_gbps=nic) for load in all_loads)
            for nic in nics
            for zcube in (STATIC, "assigned")
        ),
    )
    hits = sorted({c.cell.before.hit_rate for c in changes})
    yield Grid(
        title=f"TTFT p99 from RoFT to ZCube, by hit rate and NIC, {base.load:.0%} load",
        engine=engine,
        row_name="hit rate",
        rows=tuple(f"{hit:.0%}" for hit in hits),
        columns=tuple(f"{nic} Gbit/s" for nic in nics),
        changes=tuple(
            tuple(pair({}, {}, hit_rate=hit, nic_gbps=nic) for nic in nics) for hit in hits
        ),
    )
