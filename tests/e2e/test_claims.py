"""``kvfabric claims`` as a user runs it, on the tiny set."""

import importlib.util
import json
import subprocess
import sys
import time  # noqa: TID251 - a test waits for another process
from pathlib import Path

import pytest
from command import run

from kvfabric.export import claims_parquet

HAS_PARQUET = importlib.util.find_spec("pyarrow") is not None
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_parquet = pytest.mark.skipif(not HAS_PARQUET, reason="pyarrow is not installed")


@needs_parquet
def test_tiny_set_gives_verdicts_files_and_the_same_bytes_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = run(capsys, "claims", "--tiny", "--jobs", "1", "--out", str(tmp_path))
    assert first.code == 0, first.err
    assert "REPRODUCED: switches, against a two-tier RoFT" in first.out
    assert "NOT TESTED: speed of training" in first.out
    assert "WHAT ELSE BUYS THE SAME" in first.out
    assert "0 of them known; about" in first.err
    assert (tmp_path / "claims.txt").read_text("utf-8") == first.out
    again = run(capsys, "claims", "--tiny", "--jobs", "1", "--out", str(tmp_path))
    assert again.out == first.out
    assert "0 of them known" not in again.err
    read = json.loads((tmp_path / "claims.json").read_text("utf-8"))
    assert {verdict["finding"] for verdict in read["verdicts"]} >= {"reproduced", "not tested"}

    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    table = pq.read_table(tmp_path / "claims.parquet")
    assert table.num_rows == len(read["cells"])
    assert {"cell", "before_ttft_p99_ns", "change_ttft_p99_ns"} <= set(table.column_names)


@needs_parquet
def test_killed_sweep_goes_on_and_ends_with_the_same_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["claims", "--tiny", "--jobs", "1", "--out", str(tmp_path)]
    code = "import sys; from kvfabric.app.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while len(list(tmp_path.glob("runs/*.json"))) < 3 and process.poll() is None:
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    kept = len(list(tmp_path.glob("runs/*.json")))
    assert kept >= 3
    torn = min(tmp_path.glob("runs/*.json"))
    torn.write_text(torn.read_text("utf-8")[:100], "utf-8")
    ran = run(capsys, *arguments)
    assert ran.code == 0
    assert f"{kept - 1} of them known" in ran.err
    fresh = run(capsys, "claims", "--tiny", "--jobs", "1")
    assert ran.out == fresh.out


def test_missing_pyarrow_is_one_clear_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_parquet, "find_spec", lambda _: None)
    ran = run(capsys, "claims", "--tiny", "--out", str(tmp_path))
    assert ran.code == 2
    assert ran.err == (
        "kvfabric: --out: pyarrow is not installed, and results are written as Parquet. Install"
        " kvfabric with its extra: pip install 'kvfabric[sweep]'\n"
    )


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_missing_ray_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, "claims", "--tiny", "--ray")
    assert ran.code == 2
    assert "ray is not installed" in ran.err
    assert "kvfabric[ray]" in ran.err


@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_answer_of_the_local_cores(capsys: pytest.CaptureFixture[str]) -> None:
    local = run(capsys, "claims", "--tiny", "--jobs", "1")
    on_ray = run(capsys, "claims", "--tiny", "--ray")
    assert on_ray.code == 0, on_ray.err
    assert on_ray.out == local.out


def test_out_that_is_a_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("", "utf-8")
    ran = run(capsys, "claims", "--tiny", "--out", str(path))
    assert ran.code == 2
    assert "is a file" in ran.err
