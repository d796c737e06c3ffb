"""The cells of the sweep: what is compared with what, factor by factor around the base case."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvfabric.fabric.engines.choice import MAX_MIN, PFC
from kvfabric.plan.claims.settings import (
    BASE,
    HIGH_LOAD,
    LOW_LOAD,
    ROFT,
    STATIC,
    STICKY,
    ZCUBE,
    ZCUBE_SQUARE,
    RunSettings,
)

ENGINES = (MAX_MIN, PFC)
FABRIC, LEVER, NIC_CAP = "fabric", "lever", "nic-cap"
BASE_FACTOR = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One comparison under the same load.

    Attributes:
        kind: ``fabric`` (RoFT to ZCube), ``lever`` (RoFT with something changed) or ``nic-cap``.
        factor: what differs from the base case; ``base`` for nothing.
        value: of it.
        before: the run compared with, without engine and seed.
        after: the run that is judged, likewise.
        seeds: of the loads it is repeated with.
    """

    kind: str
    factor: str
    value: str
    before: RunSettings
    after: RunSettings
    seeds: tuple[int, ...]

    @property
    def load_name(self) -> str:
        """Return the load in words."""
        if self.before.users is not None:
            return f"{self.before.users} users"
        return f"{self.before.load:.0%} load"

    @property
    def name(self) -> str:
        """Return factor, value and load."""
        what = self.factor if self.factor == BASE_FACTOR else f"{self.factor} {self.value}"
        return f"{what}, {self.load_name}"

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the engines that can run both sides: spraying pools cables, which never pause."""
        sprays = "spray" in {self.before.balancing, self.after.balancing}
        return (MAX_MIN,) if sprays else ENGINES

    def runs(self, engine: str) -> Iterator[tuple[RunSettings, RunSettings]]:
        """Yield both runs of every seed."""
        for seed in self.seeds:
            yield (
                replace(self.before, engine=engine, seed=seed),
                replace(self.after, engine=engine, seed=seed),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """How much is swept.

    Attributes:
        base: what the cells vary.
        loads: that factors are tried at.
        grid_loads: of the grid of load and balancing.
        contended_loads: at the lowest NIC rate, where the band lies in which one fabric is past
            its capacity and the other is not.
        anchors: load and NIC rate, in Gbit/s, at which levers are tried.
        grid_hits: of the grid of hit rate and NIC rate.
        grid_nics: likewise, in Gbit/s.
        base_seeds: repeats of the base case.
        seeds: repeats of all else.
        users: of closed loops.
    """

    base: RunSettings
    loads: tuple[float, ...]
    grid_loads: tuple[float, ...]
    contended_loads: tuple[float, ...]
    anchors: tuple[tuple[float, int], ...]
    grid_hits: tuple[float, ...]
    grid_nics: tuple[int, ...]
    base_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    users: tuple[int, ...]


CONTENDED_GBPS = 100
"""Where levers are tried as well: at the base's NIC rate there may be nothing to gain."""

QUICK = SweepPlan(
    base=BASE,
    loads=(HIGH_LOAD,),
    grid_loads=(HIGH_LOAD,),
    contended_loads=(0.5, 0.65),
    anchors=((HIGH_LOAD, 400), (0.5, CONTENDED_GBPS)),
    grid_hits=(0.8, 0.9, 0.95),
    grid_nics=(100, 200, 400),
    base_seeds=(0, 1),
    seeds=(0,),
    users=(384,),
)
FULL = SweepPlan(
    base=BASE,
    loads=(LOW_LOAD, HIGH_LOAD),
    grid_loads=(0.2, LOW_LOAD, 0.5, 0.65, HIGH_LOAD, 0.9),
    contended_loads=(0.2, LOW_LOAD, 0.4, 0.5, 0.65, HIGH_LOAD),
    anchors=tuple((load, nic) for nic in (400, CONTENDED_GBPS) for load in (0.5, HIGH_LOAD)),
    grid_hits=(0.5, 0.7, 0.8, 0.9, 0.95, 0.97),
    grid_nics=(100, 200, 400),
    base_seeds=(0, 1, 2),
    seeds=(0, 1, 2),
    users=(96, 192, 384, 768),
)


BALANCINGS: tuple[tuple[str, str, int, str], ...] = (
    # of RoFT: name, policy, queue pairs; and what ZCube has beside it
    ("ecmp, 4 queue pairs", "ecmp", 4, STATIC),
    ("ecmp, 16 queue pairs", "ecmp", 16, STATIC),
    ("dmodk", "dmodk", 1, STATIC),
    ("spray (on both)", "spray", 1, "spray"),
    ("assigned (on both)", "assigned", 1, "assigned"),
)


def cells_of(plan: SweepPlan) -> tuple[Cell, ...]:
    """Return all cells of a sweep; the base case first."""
    found = [*_base(plan)]
    for load in plan.loads:
        found += _factors(plan, load)
    for load, nic_gbps in plan.anchors:
        found += _levers(plan, load, nic_gbps)
    found += _load_grid(plan)
    found += _contended(plan)
    found += _reuse_grid(plan)
    found += _closed_loops(plan)
    found += _nic_cap(plan)
    unique: dict[tuple[str, RunSettings, RunSettings], Cell] = {}
    for cell in found:
        unique.setdefault((cell.kind, cell.before, cell.after), cell)
    return tuple(unique.values())


def fabric_cell(
    plan: SweepPlan,
    factor: str,
    value: str,
    *,
    seeds: tuple[int, ...] | None = None,
    **changes: Any,
) -> Cell:
    """Return RoFT against ZCube with something changed on both.

    Args:
        plan: with the base case.
        factor: what is changed.
        value: in words.
        seeds: the plan's by default.
        changes: fields of ``RunSettings``; ``before_*`` and ``after_*`` of one side only.
    """
    both = {k: v for k, v in changes.items() if not k.startswith(("before_", "after_"))}
    before = {k.removeprefix("before_"): v for k, v in changes.items() if k.startswith("before_")}
    after = {k.removeprefix("after_"): v for k, v in changes.items() if k.startswith("after_")}
    settings = replace(plan.base, **both)
    return Cell(
        kind=FABRIC,
        factor=factor,
        value=value,
        before=replace(settings, fabric=ROFT, **before),
        after=replace(replace(settings, fabric=ZCUBE, balancing=STATIC, queue_pairs=1), **after),
        seeds=plan.seeds if seeds is None else seeds,
    )


def _base(plan: SweepPlan) -> Iterator[Cell]:
    for load in (LOW_LOAD, HIGH_LOAD):
        yield fabric_cell(plan, BASE_FACTOR, "", seeds=plan.base_seeds, load=load)


def _factors(plan: SweepPlan, load: float) -> Iterator[Cell]:
    base = plan.base

    def cell(factor: str, value: str, **changes: Any) -> Cell:
        return fabric_cell(plan, factor, value, load=load, **changes)

    for name, policy, pairs, zcube in BALANCINGS:
        yield cell("RoFT balancing", name, before_balancing=policy, before_queue_pairs=pairs,
                   after_balancing=zcube)  # fmt: skip
    yield cell("ZCube routes", "assigned (best case)", after_balancing="assigned")
    yield cell("ZCube routes", "ecmp, 1 queue pair (as RoFT)", after_balancing="ecmp")
    yield cell("ZCube size", "square, one cable per pair of switches", after_fabric=ZCUBE_SQUARE)
    for senders in ("all", "rotate"):
        yield cell("latent sent by", f"{senders} ranks", senders=senders)
    for share in (0.0, 0.02, 0.05):
        yield cell("cold prompts", f"{share:.1%}", cold_share=share)
    for cv in (3.0, 6.0):
        yield cell("bursts", f"cv {cv:g}", burst_cv=cv)
    whole = base.num_prefill + base.num_decode
    for eighths in (2, 6):
        prefill = whole * eighths // 8
        yield cell("P:D", f"{prefill}:{whole - prefill}", num_prefill=prefill,
                   num_decode=whole - prefill)  # fmt: skip
    yield cell("context-parallel prefill", "2 servers", prefill_cp=2,
               num_prefill=base.num_prefill // 2)  # fmt: skip
    for receiver in ("random", "topology_aware"):
        yield cell("receiver", receiver, receiver=receiver)
    yield cell("placement", "interleaved", placement="interleaved")
    yield cell("hand-off", "layer_wise", handoff="layer_wise")
    yield cell("model", "llama-3.1-70b (bf16)", model="llama-3.1-70b", weight_dtype="auto")
    sticky = {"contexts": STICKY, "routing": "prefix_aware", "num_contexts": base.num_contexts // 2}
    yield cell("contexts", "sticky, prefix-aware router", **sticky)
    yield cell("contexts", "sticky, pool in host memory", pool_stripes=1, **sticky)


def _levers(plan: SweepPlan, load: float, nic_gbps: int) -> Iterator[Cell]:
    """Yield what else RoFT can do, at one load and NIC rate; the fabric itself among it."""
    anchor = replace(plan.base, load=load, nic_gbps=nic_gbps)
    where = f"at {nic_gbps} Gbit/s"
    whole = plan.base.num_prefill + plan.base.num_decode

    def lever(factor: str, **changes: Any) -> Cell:
        return Cell(kind=LEVER, factor=factor, value=where, before=anchor,
                    after=replace(anchor, **changes), seeds=plan.seeds)  # fmt: skip

    yield fabric_cell(plan, "NIC rate", f"{nic_gbps} Gbit/s", load=load, nic_gbps=nic_gbps)
    yield fabric_cell(
        plan, "ZCube routes", f"assigned (best case), {nic_gbps} Gbit/s", load=load,
        nic_gbps=nic_gbps, after_balancing="assigned",
    )  # fmt: skip
    yield lever("destination-indexed routes (dmodk)", balancing="dmodk")
    yield lever("4 queue pairs", queue_pairs=4)
    yield lever("16 queue pairs", queue_pairs=16)
    yield lever("KV spread over all NICs of a server", senders="all")
    yield lever("rotating sending rank", senders="rotate")
    yield lever("topology-aware receiver", receiver="topology_aware")
    yield lever("layer-wise streaming", handoff="layer_wise")
    more = whole * 5 // 8
    yield lever(
        f"P:D {more}:{whole - more}", num_prefill=more, num_decode=whole - more,
        load=load * plan.base.num_prefill / more,
    )  # fmt: skip
    yield Cell(
        kind=LEVER, factor="fetches striped over 4 servers", value=f"{where}, from a pool",
        before=_pooled(anchor, 1), after=_pooled(anchor, 4), seeds=plan.seeds,
    )  # fmt: skip


def _pooled(settings: RunSettings, stripes: int) -> RunSettings:
    return replace(
        settings,
        contexts=STICKY,
        routing="prefix_aware",
        num_contexts=settings.num_contexts // 2,
        pool_stripes=stripes,
    )


def _load_grid(plan: SweepPlan) -> Iterator[Cell]:
    for load in plan.grid_loads:
        yield fabric_cell(plan, "load", f"{load:.0%}", load=load)
        for name, policy, pairs, zcube in BALANCINGS:
            yield fabric_cell(
                plan, "RoFT balancing", name, load=load, before_balancing=policy,
                before_queue_pairs=pairs, after_balancing=zcube,
            )  # fmt: skip


def _contended(plan: SweepPlan) -> Iterator[Cell]:
    for load in plan.contended_loads:
        for name, zcube in (("", STATIC), (", assigned (best case)", "assigned")):
            yield fabric_cell(
                plan,
                "NIC rate",
                f"{CONTENDED_GBPS} Gbit/s{name}",
                load=load,
                nic_gbps=CONTENDED_GBPS,
                after_balancing=zcube,
            )


def _reuse_grid(plan: SweepPlan) -> Iterator[Cell]:
    for hit in plan.grid_hits:
        for nic in plan.grid_nics:
            yield fabric_cell(
                plan, "hit rate and NIC", f"{hit:.0%}, {nic} Gbit/s", hit_rate=hit, nic_gbps=nic
            )


def _closed_loops(plan: SweepPlan) -> Iterator[Cell]:
    for users in plan.users:
        for nic in (CONTENDED_GBPS, plan.base.nic_gbps):
            yield fabric_cell(plan, "closed loop", f"{nic} Gbit/s", users=users, nic_gbps=nic)


def _nic_cap(plan: SweepPlan) -> Iterator[Cell]:
    """Yield the second published experiment: 32 GPUs, NICs of 100 and of 200 Gbit/s."""
    small = replace(plan.base, num_prefill=2, num_decode=2)
    loads: tuple[dict[str, Any], ...] = (
        *({"load": load} for load in (LOW_LOAD, HIGH_LOAD)),
        *({"users": users} for users in (8, 16, 32)),
    )
    for senders in ("first", "all"):
        for load in loads:
            before = replace(small, senders=senders, nic_gbps=100, **load)
            yield Cell(
                kind=NIC_CAP, factor="NIC 100 to 200 Gbit/s", value=f"{senders} ranks send",
                before=before, after=replace(before, nic_gbps=200), seeds=plan.seeds,
            )  # fmt: skip
