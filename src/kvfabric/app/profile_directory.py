"""Operator profiles on disk, in the layout of LLMServingSim's profiler: CSV files and meta.yaml.

A profile lies in ``profile_tp<N>`` or ``tp<N>`` of a folder, or is the folder itself::

    dense.csv         layer,tokens,time_us
    per_sequence.csv  layer,sequences,time_us
    attention.csv     prefill_chunk,kv_prefill,n_decode,kv_decode,time_us
    moe.csv           tokens,activated_experts,time_us    (routed experts; may lie in tp 1 only)
    meta.yaml         model, gpu, vllm_version, attention_grid    (here or one folder up)

Files beside these (skew, step) are not read.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kvfabric.app.profile_csv import read_attention, read_curves, read_experts
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.perf.attention_grid import AttentionGrid, AttentionPoint, Axes, complete_grid
from kvfabric.perf.moe import ExpertTable
from kvfabric.perf.profile_tables import (
    ONCE,
    PER_LAYER,
    PER_REQUEST,
    TOKEN_OPERATORS,
    ProfileTables,
    require_operators,
)
from kvfabric.protocol.provenance import Source, SourceKind

_NAMES: Final = ("profile_tp{}", "tp{}")
_UNREAD_OPERATORS: Final = "linear_attention.csv"
_NORMALIZED_FAMILIES: Final = ("qwen3", "qwen3_moe")
# Keys of attention_grid in meta.yaml, per axis of an AttentionPoint.
_AXIS_KEYS: Final = ("chunks", "kv", "n_decode", "kv")
_GEOMETRIC: Final = re.compile(r"(\d+)-(\d+) x(\d+(?:\.\d+)?)")


def read_profile(path: Path, *, tp: int = 1, num_data_ranks: int = 1) -> ProfileTables:
    """Return the operators measured for one rank of ``tp``.

    Args:
        path: the folder of a profile, or one that holds it as ``profile_tp<N>`` or ``tp<N>``.
        tp: tensor-parallel ranks.
        num_data_ranks: data-parallel ranks that share the routed experts.

    Raises:
        ConfigError: a missing file, or a mistake in one; names file and line.
        UnsupportedError: a model with other layers than attention and feed-forward.
    """
    folder = _profile_folder(path, tp)
    unread = folder / _UNREAD_OPERATORS
    if unread.exists():
        raise UnsupportedError(
            "recurrent layers", where=str(unread), hint="Profiles of such models are not composed"
        )
    meta_path, meta = _read_meta(folder)
    dense, per_request = folder / "dense.csv", folder / "per_sequence.csv"
    tokens = read_curves(dense, "tokens", TOKEN_OPERATORS)
    requests = read_curves(per_request, "sequences", PER_REQUEST)
    require_operators(tokens, (*ONCE, *PER_LAYER), where=str(dense))
    require_operators(requests, PER_REQUEST, where=str(per_request))
    if meta.get("architecture") in _NORMALIZED_FAMILIES and "qk_norm" not in tokens:
        raise ConfigError(
            f"the profile of a {meta['architecture']} model lacks qk_norm",
            where=str(dense),
            hint="Add its rows",
        )
    return ProfileTables(
        model_name=str(meta.get("model", "unknown model")),
        tp=tp,
        tokens=tokens,
        requests=requests,
        attention=_read_grid(folder / "attention.csv", meta_path, meta),
        source=_source(meta, tp),
        experts=_read_experts(folder, tp * num_data_ranks),
    )


def _profile_folder(path: Path, tp: int) -> Path:
    if not path.is_dir():
        raise ConfigError("no such folder", where=str(path), hint="Name the folder of a profile")
    for name in _NAMES:
        folder = path / name.format(tp)
        if folder.is_dir():
            return folder
    degree = re.fullmatch(r"(?:profile_)?tp(\d+)", path.resolve().name)
    if (path / "dense.csv").is_file() and (degree is None or int(degree[1]) == tp):
        return path
    found = sorted(
        child.name for child in path.iterdir() if re.fullmatch(r"(profile_)?tp\d+", child.name)
    )
    there = f"it holds {', '.join(found)}" if found else "it holds none"
    raise ConfigError(
        f"no profile of tp {tp}; {there}",
        where=str(path),
        hint=f"Name a folder with {_NAMES[0].format(tp)}, or write a tp that was measured",
    )


def _read_experts(folder: Path, num_shards: int) -> ExpertTable | None:
    beside = (folder.parent / name.format(1) for name in _NAMES)
    for candidate in (folder, *beside):
        path = candidate / "moe.csv"
        if path.is_file():
            return read_experts(path, num_shards)
    return None


def _read_meta(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    path = next(
        (p for p in (folder / "meta.yaml", folder.parent / "meta.yaml") if p.is_file()), None
    )
    if path is None:
        raise ConfigError(
            "no meta.yaml, which says what was measured",
            where=str(folder),
            hint="Add it with model, gpu and vllm_version",
        )
    try:
        meta = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read it: {error}", where=str(path), hint="Copy it again"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ConfigError(problem, where=f"{path}{line}", hint="Check the YAML") from None
    if not isinstance(meta, Mapping):
        raise ConfigError("no mapping of keys", where=str(path), hint="Write key: value")
    return path, meta


def _source(meta: Mapping[str, Any], tp: int) -> Source:
    gpu, model, vllm = (meta.get(key, "unknown") for key in ("gpu", "model", "vllm_version"))
    text = f"operator profile of {model} tp {tp} on {gpu}, vLLM {vllm}"
    return Source(SourceKind.MEASURED, text, str(meta.get("profiled_at", ""))[:10])


def _read_grid(path: Path, meta_path: Path, meta: Mapping[str, Any]) -> AttentionGrid:
    samples = read_attention(path)
    grid = meta.get("attention_grid") or {}
    if not isinstance(grid, Mapping):
        raise ConfigError(
            f"attention_grid {grid!r}", where=str(meta_path), hint="Write chunks, n_decode and kv"
        )
    chunk, history, decodes, context = (
        _axis({point[i] for point in samples}, grid.get(key), f"{meta_path}: attention_grid.{key}")
        for i, key in enumerate(_AXIS_KEYS)
    )
    axes: Axes = (chunk, history, decodes, context)
    for name, axis in zip(AttentionPoint._fields, axes, strict=True):
        if not any(axis):
            raise ConfigError(f"every {name} is 0", where=str(path), hint="Measure larger ones")
    try:
        return complete_grid(samples, axes)
    except ConfigError as error:
        raise ConfigError(error.what, where=str(path), hint=error.hint) from None


def _axis(found: Iterable[int], spec: object, where: str) -> tuple[int, ...]:
    """Return the measured values of an axis that belong to its grid.

    A file may hold the points of a second, finer grid, whose crossings with the first were not
    measured; ``spec``, such as ``0, 16-2048 x2``, tells them apart. Without it all belong.
    """
    if spec is None:
        return tuple(sorted(found))
    wanted: set[int] = set()
    for part in str(spec).split(","):
        wanted.update(_spec_values(part.strip(), str(spec), where))
    return tuple(sorted(wanted.intersection(found)))


def _spec_values(part: str, spec: str, where: str) -> Iterable[int]:
    if part.isdecimal():
        return (int(part),)
    match = _GEOMETRIC.fullmatch(part)
    if match is None or float(match[3]) <= 1 or int(match[1]) < 1:
        raise ConfigError(f"grid {spec!r}", where=where, hint="Write it as '0, 16-2048 x2'")
    value, last, factor = float(match[1]), int(match[2]), float(match[3])
    values = {last}
    while value <= last:
        # Profilers round 121.5 either way.
        values.update((int(value), round(value), int(value + 0.5)))
        value *= factor
    return values
