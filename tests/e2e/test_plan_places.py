"""Mistakes of a plan that show only when its parts are put together; folders that cannot be."""

from pathlib import Path

import pytest
from command import TINY, run

Capture = pytest.CaptureFixture[str]

# name: (text in the scenario, what replaces it, place told)
PARTS: dict[str, tuple[str, str, str]] = {
    "tp of no server": ("tp: 1", "tp: 3", ":8: workers.tp: "),
    "part of a server": ("prefill: 20", "prefill: 19", ":8: workers: "),
    "context too long": ("2000", "900000", ":7: context_tokens: "),
    "length beyond the model": (
        "tp: 1",
        "tp: 1, max_model_len: 900000",
        ":8: workers.max_model_len: ",
    ),
    "cache type": ("tp: 1", "tp: 1, kv_dtype: q4", ":8: workers.kv_dtype: "),
    "weights": ("tp: 1", "tp: 1, weight_dtype: q4", ":8: workers.weight_dtype: "),
    "small budget": ("tp: 1", "tp: 1, max_num_batched_tokens: 16", ":8: workers: "),
    "same label": ("roft", "clos", ":12: fabric.kinds: "),
    "tiers": ("roft", "{kind: roft, tiers: 9}", ":12: fabric.kinds: "),
    "few ports": ("6.4 Tbit/s", "400 Gbit/s", ":11: fabric.switch: "),
}


@pytest.mark.parametrize("case", PARTS)
def test_mistake_of_parts_is_told_with_its_line(case: str, tmp_path: Path, capsys: Capture) -> None:
    before, after, place = PARTS[case]
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY.replace(before, after, 1))
    ran = run(capsys, "plan", str(path), "--jobs", "1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"kvfabric: {path}{place}")


def test_out_below_a_file_is_refused_before_the_run(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(TINY)
    ran = run(capsys, "plan", str(path), "--out", str(path / "result"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"kvfabric: --out: {path} is a file. Name a folder\n"


def test_no_command_shows_the_help(capsys: Capture) -> None:
    ran = run(capsys)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: kvfabric ")
