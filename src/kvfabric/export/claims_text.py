"""The answer of ``kvfabric claims`` as text: verdicts, regions, levers, every cell."""

import textwrap
from collections.abc import Iterator, Sequence

from kvfabric.plan.claims.answer import ClaimsAnswer, LeverGroup
from kvfabric.plan.claims.cells import FABRIC, LEVER, NIC_CAP
from kvfabric.plan.claims.changes import Change, Evidence
from kvfabric.plan.claims.grids import Grid, grids_of
from kvfabric.plan.claims.judge import REGION, ClaimVerdict, Finding, sides
from kvfabric.plan.claims.settings import BASE_REASONS
from kvfabric.units import format_ns

WIDTH = 120
_MOST_CONDITIONS = 6
_MARKS = {Evidence.GOOD: "", Evidence.NETWORK_BOUND: "~", Evidence.COMPUTE_BOUND: "overload"}

LIMITS = (
    ("Both bounds are shown: pfc has priority flow control and no end-to-end rate control, max-min"
    " is ideal rate control. A real fabric lies between."),
    ("Step times come from a roofline. For GLM-5 in bf16 on 8 H200 aiconfigurator-core 0.12.0 has"
    " 1.2 times as long for prompts from 4,096 tokens, and 1.5 times, not measured there, for 2,048"
    " behind 32,768; for fp8 weights more. Where that is right, the network looks busier here."),
    ("A load runs for some seconds. Where transfers pile up (marked ~) latencies grow with the time"
    " that the load lasts, and a change depends on it."),
    ("Chosen after looking, in favor of the claim: one sending rank in the base case (with all"
    " ranks sending the fabric changes almost nothing), 0.5 % cold prompts, and the cells of 100"
    " Gbit/s at 50 and 65 % load. How many cells reach a claim is no frequency."),
    ("The published cluster's load balancing, rate control, P:D ratio, KV size and mix of requests"
    " are unknown. Nothing here says what was or was not measured there."),
)  # fmt: skip


def render_claims(answer: ClaimsAnswer) -> str:
    """Return the whole answer as text."""
    return "\n".join(_lines(answer)) + "\n"


def _lines(answer: ClaimsAnswer) -> Iterator[str]:
    yield "THE PUBLISHED CLAIMS FOR A FLATTENED FABRIC (RoFT TO ZCube), PUT TO THE TEST"
    yield ""
    for verdict in answer.verdicts:
        yield from _verdict(verdict)
    yield from _base(answer)
    yield ""
    yield f"WHERE TTFT p99 FALLS BY {REGION:.0%}, AND WHERE IT IS NOTHING"
    yield "(~ transfers pile up; overload: by computation, no evidence; - not run)"
    for grid in grids_of(answer.base, answer.changes):
        yield from _grid(grid)
    yield ""
    yield "WHAT ELSE BUYS THE SAME"
    for group in answer.levers:
        yield from _levers(group)
    for title, kind in (("EVERY CELL: RoFT TO ZCube", FABRIC), ("NIC CAP, 32 GPUs", NIC_CAP)):
        rows = [change for change in answer.changes if change.cell.kind == kind]
        yield ""
        yield title
        yield from _table(rows)
    yield ""
    counts = ", ".join(f"{count} {name}" for name, count in answer.evidence_counts.items())
    yield f"{answer.num_runs} runs; cells and bounds: {counts}."
    for limit in LIMITS:
        yield from _wrapped(f"- {limit}", "  ")


def _verdict(verdict: ClaimVerdict) -> Iterator[str]:
    claim = verdict.claim
    yield f"{verdict.finding.value.upper()}: {claim.text}: {claim.range_text}"
    yield from _wrapped(f"  {verdict.text}", "  ")
    for condition in verdict.conditions[:_MOST_CONDITIONS]:
        yield from _wrapped(f"  - {condition}", "    ")
    more = len(verdict.conditions) - _MOST_CONDITIONS
    if more > 0:
        yield f"  - and {more} more, see the tables"
    if verdict.finding is not Finding.REPRODUCED or claim.low != claim.high:
        yield f"  ({claim.source})"
    yield ""


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _base(answer: ClaimsAnswer) -> Iterator[str]:
    yield "THE BASE CASE, AND WHY"
    for value, reason in BASE_REASONS:
        yield from _wrapped(f"  {value}: {reason}", "    ")
    yield f"  {answer.base.num_requests:,} measured requests per run"


def _grid(grid: Grid) -> Iterator[str]:
    yield ""
    yield f"{grid.title} ({grid.engine})"
    cells = [[_percent(change) for change in row] for row in grid.changes]
    yield from _aligned([[grid.row_name, *grid.columns]] + [
        [name, *row] for name, row in zip(grid.rows, cells, strict=True)
    ])  # fmt: skip


def _percent(change: Change | None, field: str = "ttft_p99_ns") -> str:
    if change is None or change.evidence is Evidence.NOT_RUN:
        return "-"
    return f"{change.of(field):+.0%}{_mark(change)}"


def _mark(change: Change) -> str:
    mark = _MARKS[change.evidence]
    return f" {mark}" if mark == "overload" else mark


def _levers(group: LeverGroup) -> Iterator[str]:
    before, first = group.before, next((c for c in group.changes if c.before), None)
    start = ""
    if first is not None:
        start = (
            f": TTFT p99 {_time(first.mean_before('ttft_p99_ns'))}, busiest NIC"
            f" {first.mean_before('nic_utilization'):.0%}, wire"
            f" {first.mean_before('wire_share'):.0%} of the mean TTFT, cold"
            f" {first.mean_before('tail_cold_share'):.0%} of the p99 tail"
        )
    pool = ", prefixes in a pool" if before.pool_stripes else ""
    yield ""
    yield from _wrapped(
        f"RoFT, {before.balancing} {before.queue_pairs} qp, {before.nic_gbps} Gbit/s,"
        f" {before.load:.0%} load{pool}, {group.engine}{start}",
        "  ",
    )
    yield from _aligned(
        [["", "TTFT p99", "mean", "requests/s"]]
        + [
            [
                _lever_name(change),
                _percent(change),
                _percent(change, "ttft_mean_ns"),
                _percent(change, "requests_per_s"),
            ]
            for change in group.changes
        ]
    )


def _lever_name(change: Change) -> str:
    cell = change.cell
    if cell.kind == LEVER:
        return cell.factor
    return f"THE FABRIC: {cell.after.fabric}, {_after_balancing(change)}"


def _after_balancing(change: Change) -> str:
    policy = change.cell.after.balancing
    return {"path-destination": "static routes", "assigned": "assigned (best case)"}.get(
        policy, policy
    )


_HEAD = ["cell", "compared", "bound", "TTFT p99", "", "change", "mean", "p50", "req/s",
         "wire", "wire p99", "NIC", "link", "hit", "cold tail", ""]  # fmt: skip


def _table(changes: Sequence[Change]) -> Iterator[str]:
    yield from _aligned([_HEAD, *(_row(change) for change in changes)])
    reasons = dict.fromkeys(change.reason for change in changes if change.reason)
    for reason in reasons:
        yield from _wrapped(f"  not run: {reason}", "    ")


def _row(change: Change) -> list[str]:
    head = [change.cell.name, sides(change), change.engine]
    if change.evidence is Evidence.NOT_RUN:
        return [*head, *[""] * 12, "not run"]
    return [
        *head,
        _time(change.mean_before("ttft_p99_ns")),
        _time(change.mean_after("ttft_p99_ns")),
        f"{change.of('ttft_p99_ns'):+.1%}",
        f"{change.of('ttft_mean_ns'):+.1%}",
        f"{change.of('ttft_p50_ns'):+.1%}",
        f"{change.of('requests_per_s'):+.1%}",
        f"{change.mean_before('wire_share'):.0%}",
        _time(change.mean_before("wire_p99_ns")),
        f"{change.mean_before('nic_utilization'):.0%}",
        f"{change.mean_before('link_utilization'):.0%}",
        f"{change.mean_before('hit_rate'):.0%}",
        f"{change.mean_before('tail_cold_share'):.0%}",
        _row_notes(change),
    ]


def _row_notes(change: Change) -> str:
    notes = [] if change.evidence is Evidence.GOOD else [change.evidence.value]
    unfinished = sum(run.num_measured - run.num_finished for run in (*change.before, *change.after))
    if unfinished:
        notes.append(f"{unfinished} unfinished")
    shares = [run.unconverged_share or 0.0 for run in (*change.before, *change.after)]
    if max(shares) >= 0.01:
        notes.append(f"{max(shares):.0%} of the solves not converged")
    return ", ".join(notes)


def _time(duration_ns: float) -> str:
    return format_ns(round(duration_ns))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return lines of columns; the first and the last are aligned left, the others right."""
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(rows[0]))]
    for row in rows:
        texts = [
            text.ljust(width)
            if idx == 0 or (not text[:1].isdigit() and text[:1] not in "+-")
            else text.rjust(width)
            for idx, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(texts)).rstrip()
