"""``kvfabric validate``: the table, its forms, the reference folder and the exit code."""

import gzip
import json
import lzma
from pathlib import Path

import click
import pytest
from command import run

from kvfabric.app.main import cli
from kvfabric.app.validate_cli import PARTS

CONVERSATION = "traces/mooncake/conversation_trace.jsonl.xz"
FAST = ("--only", "hand-off", "--only", "prefix-cache")


@pytest.fixture(autouse=True)
def _without_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFABRIC_REFERENCE", raising=False)


def reference_with_trace(tmp_path: Path, text: str) -> Path:
    path = tmp_path / CONVERSATION
    path.parent.mkdir(parents=True)
    path.write_bytes(lzma.compress(text.encode()))
    return tmp_path


def test_text_tells_recomputed_from_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, "validate", *FAST)
    assert ran.code == 0
    assert "6 comparisons, 5 recomputed now." in ran.out
    assert "kvfabric validate --reference DIR --only prefix-cache" in ran.out
    assert ran.out.rstrip().endswith("None is worse than its limit.")
    assert "[1/6] prefix-cache: " in ran.err
    trace = next(line for line in ran.out.splitlines() if "LRU hit rate" in line)
    assert trace.endswith("recorded")


def test_same_bytes_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (run(capsys, "validate", *FAST, "--figures").out for _ in range(2))
    assert first == second


def test_figures_stand_below_their_row(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "validate", "--only", "hand-off", "--figures").out
    line = next(line for line in out.splitlines() if "qwen3-8b, 32,768 tokens" in line)
    assert line.split()[-5:] == ["ms", "31.65", "33.45213", "+5.7", "%"]


def test_json_has_every_figure_and_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "validate", *FAST, "--format", "json").out)
    assert answer["num_comparisons"] == len(answer["rows"]) == 6
    assert answer["num_worse"] == 0
    recorded = [row for row in answer["rows"] if row["status"] == "recorded"]
    assert [row["needs"] for row in recorded] == [[CONVERSATION]]
    assert recorded[0]["recorded_on"] == "2026-11-30"
    fit = next(row for row in answer["rows"] if "146.1" in row["what"])
    assert fit["role"] == "calibrated"
    assert fit["n"] == len(fit["figures"]) == 8
    assert fit["error_worst"] == pytest.approx(-0.0577, abs=1e-4)


def test_markdown_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "validate", *FAST, "--format", "markdown").out.splitlines()
    assert len(lines) == 2 + 6
    assert all(line.count("|") == 10 for line in lines)


def test_worse_than_its_limit_is_a_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = json.dumps({"hash_ids": [1, 2, 3]}) + "\n"
    folder = reference_with_trace(tmp_path, 2 * row)
    ran = run(capsys, "validate", "--reference", str(folder), "--only", "prefix-cache")
    assert ran.code == 1
    assert "WORSE: prefix-cache, LRU hit rate" in ran.out
    assert "3 comparisons, 3 recomputed now." in ran.out


def test_reference_folder_may_lack_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ran = run(capsys, "validate", "--reference", str(tmp_path), "--only", "max-min")
    assert ran.code == 0
    assert f"not in {tmp_path}: fabric/maxmin; shown as recorded" in ran.err
    assert "1 as recorded" in ran.out


def test_environment_names_the_folder_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFABRIC_REFERENCE", str(tmp_path / "nowhere"))
    ran = run(capsys, "validate", "--only", "hand-off")
    assert ran.code == 2
    assert "nowhere does not exist" in ran.err


@pytest.mark.parametrize(
    "text", ["", "no json\n", "[]\n", '{"input_length": 5}\n', '{"hash_ids": 3}\n']
)
def test_spoilt_reference_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    folder = reference_with_trace(tmp_path, text)
    ran = run(capsys, "validate", "--reference", str(folder), "--only", "prefix-cache")
    assert ran.code == 2
    assert CONVERSATION in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", ["workload", "finish_s"])
def test_cut_off_flows_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "fabric" / "maxmin"
    folder.mkdir(parents=True)
    texts = {"workload": "2 1 1\n1e9\n0 1 0.0 100 1 0\n", "finish_s": "1e-7\n"}
    texts[name] = texts[name][:3] if name == "workload" else ""
    for stem, text in texts.items():
        path = folder / f"{stem}_1024h_10k_load0.5.txt.gz"
        path.write_bytes(gzip.compress(text.encode()))
    ran = run(capsys, "validate", "--reference", str(tmp_path), "--only", "max-min")
    assert ran.code == 2
    assert f"{name}_1024h_10k_load0.5.txt.gz" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nothing"), "'nothing' is not one of"),
        (("--format", "xml"), "'xml' is not one of"),
        (("--reference", __file__), "is a file"),
    ],
)
def test_bad_input_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    ran = run(capsys, "validate", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""


def test_help_lists_all_parts() -> None:
    command = cli.commands["validate"]
    text = command.get_help(click.Context(command))
    assert all(part in text for part in PARTS)
