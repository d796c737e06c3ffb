"""Hand-made cells and figures for the judgement of claims."""

from dataclasses import replace

from kvfabric.plan.claims.cells import FABRIC, Cell
from kvfabric.plan.claims.changes import Change, Evidence
from kvfabric.plan.claims.figures import RunFigures
from kvfabric.plan.claims.settings import BASE, STATIC, ZCUBE, RunSettings

MS = 1_000_000

FIGURES = RunFigures(
    num_measured=1_000,
    num_finished=1_000,
    ttft_mean_ns=300 * MS,
    ttft_p50_ns=250 * MS,
    ttft_p99_ns=1_000 * MS,
    requests_per_s=100.0,
    output_tokens_per_s=1_000.0,
    hit_rate=0.9,
    cold_share=0.005,
    tail_cold_share=0.1,
    wire_share=0.4,
    tail_wire_share=0.5,
    wire_mean_ns=120 * MS,
    wire_p99_ns=400 * MS,
    wire_growth=1.0,
    queue_mean_ns=20 * MS,
    compute_mean_ns=150 * MS,
    decode_wait_mean_ns=5 * MS,
    busiest_nic="GPU 0 port 0 -> leaf 0",
    nic_utilization=0.37,
    busiest_link="leaf 0 -> spine 0",
    link_utilization=0.4,
    mean_nic_utilization=0.03,
    pressure="stable",
    waiting_share=0.1,
    bottleneck="prefill",
    unconverged_share=None,
    num_flows=8_000,
    log_digest="",
)


def fabric_cell(factor: str = "base", before: RunSettings = BASE) -> Cell:
    return Cell(
        kind=FABRIC,
        factor=factor,
        value="",
        before=before,
        after=replace(before, fabric=ZCUBE, balancing=STATIC),
        seeds=(0,),
    )


def change(
    share: float,
    *,
    field: str = "ttft_p99_ns",
    cell: Cell | None = None,
    engine: str = "pfc",
    evidence: Evidence = Evidence.GOOD,
) -> Change:
    """Return a change of one figure by a share."""
    value = getattr(FIGURES, field) * (1 + share)
    after = replace(FIGURES, **{field: type(getattr(FIGURES, field))(value)})
    if evidence is Evidence.NOT_RUN:
        return Change(cell=cell or fabric_cell(), engine=engine, evidence=evidence, reason="x")
    return Change(
        cell=cell or fabric_cell(),
        engine=engine,
        evidence=evidence,
        before=(FIGURES,),
        after=(after,),
    )
