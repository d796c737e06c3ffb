"""Small operator profiles with round numbers, as data and as files."""

from collections.abc import Mapping
from pathlib import Path

from kvfabric.perf.attention_grid import AttentionGrid, AttentionPoint, complete_grid
from kvfabric.perf.curve import FS_PER_US, Curve
from kvfabric.perf.moe import ExpertTable
from kvfabric.perf.profile_tables import (
    DENSE_MLP,
    ONCE,
    PER_LAYER,
    PER_REQUEST,
    ProfiledModel,
    ProfileTables,
)
from kvfabric.protocol.provenance import Source, SourceKind

MEASURED = Source(SourceKind.MEASURED, "round numbers", "2026-11-30")
MODEL = ProfiledModel(num_layers=4, hidden_size=1_000, vocab_size=10_000)


def curve(points: Mapping[int, float]) -> Curve:
    """Return a curve from us by size."""
    return Curve(tuple(points), tuple(round(us * FS_PER_US) for us in points.values()))


def grid() -> AttentionGrid:
    """Return attention of ``chunk + history / 10 + decodes + decodes * context / 100`` us.

    Bilinear in decodes and context and linear otherwise, as the look-up is, so that every point
    between has a known value.
    """
    axes = ((16, 64), (32, 128), (1, 4, 16), (16, 64, 1024))
    samples = {
        AttentionPoint(p, h, n, c): round((p + h / 10 + n + n * c / 100) * FS_PER_US)
        for p in (0, *axes[0])
        for h in (0, *axes[1])
        for n in (0, *axes[2])
        for c in (0, *axes[3])
    }
    # Context 0 takes the time at 16 when it is not there; here it is left out for decodes only.
    return complete_grid(
        {p: t for p, t in samples.items() if p.context or not p.decodes},
        (axes[0], axes[1], axes[2], axes[3]),
    )


def tables(
    *, tp: int = 1, experts: ExpertTable | None = None, leave_out: tuple[str, ...] = ()
) -> ProfileTables:
    """Return operators of 1 us a call and 0.1 us a token, heads of 10 us and 1 us a request."""
    names = (*ONCE, *PER_LAYER, *DENSE_MLP)
    per_token = curve({1: 1.1, 1_001: 101.1})
    per_request = curve({1: 11, 101: 111})
    return ProfileTables(
        model_name="round",
        tp=tp,
        tokens={name: per_token for name in names if name not in leave_out},
        requests=dict.fromkeys(PER_REQUEST, per_request),
        attention=grid(),
        source=MEASURED,
        experts=experts,
    )


META = """\
model: round/model
gpu: Round GPU
vllm_version: 0.19.0
profiled_at: '2026-04-24T12:44:27+00:00'
architecture: llama
attention_grid:
  chunks: 0, 16-32 x2
  n_decode: 0, 1-4 x2
  kv: 0, 16-64 x2
"""


def attention_csv() -> str:
    """Return a full attention grid; 24 and 3 lie off the grid of ``META``."""
    rows = [
        f"{p},{h},{n},{c},{1 + p + n + n * c / 100 + h / 10}"
        for p in (0, 16, 24, 32)
        for h in ((0, 16, 32, 64) if p else (0,))
        for n in (0, 1, 2, 3, 4)
        for c in ((16, 32, 64) if n else (0,))
        if p or n
    ]
    return "\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows, ""])


def write_profile(
    folder: Path, *, name: str = "profile_tp1", leave_out: tuple[str, ...] = ()
) -> Path:
    """Write a profile into ``folder / name`` and return that."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    names = [op for op in (*ONCE, *PER_LAYER, *DENSE_MLP) if op not in leave_out]
    dense = [f"{op},{t},{us}" for op in names for t, us in ((1, 1.5), (64, 12.125))]
    heads = [f"{op},{n},{us}" for op in PER_REQUEST for n, us in ((1, 20), (64, 52.25))]
    (path / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense, ""]))
    (path / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *heads, ""]))
    (path / "attention.csv").write_text(attention_csv())
    (path / "meta.yaml").write_text(META)
    return path
