"""``kvfabric step-times`` and ``perf: {kind: aic}`` as a user runs them.

aiconfigurator is a stand-in here; ``oracle/test_aiconfigurator`` asks the package itself.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aic_stand_in import Handle, stand_in
from command import TINY, run

from kvfabric.app import step_times_command

LLAMA = ("step-times", "--model", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--tp", "8")
SCENARIO = TINY.replace("llama-3.1-8b", "llama-3.1-70b").replace(
    "tp: 1}", "tp: 8, num_blocks: 9000}\nperf: {kind: aic}"
)


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[type[Handle]]:
    with stand_in(tmp_path) as found:
        yield found


def test_both_are_shown_side_by_side(
    handle: type[Handle], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, *LLAMA)
    assert (ran.code, ran.err) == (0, "")
    assert handle.asked is not None
    lines = ran.out.splitlines()
    assert lines[0] == "llama-3.1-70b on h100-sxm-80gb, tp 8: ms per step"
    (prompt,) = (line.split() for line in lines if line.startswith("  2,048 prompt tokens  "))
    assert prompt == ["2,048", "prompt", "tokens", "84.92", "86.92", "0.98"]
    (decodes,) = (line.split() for line in lines if line.startswith("  16 decodes"))
    assert decodes[-2:] == ["11.27", "1.01"]
    assert "aiconfigurator-core 0.12.0, vllm 0.24.0 tables of h100_sxm" in ran.out


def test_json_has_the_same(handle: type[Handle], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *LLAMA, "--format", "json").out)
    assert handle.asked is not None
    step = next(step for step in found["steps"] if step["step"] == "2,048 prompt tokens")
    assert step["aiconfigurator_ms"] == pytest.approx(86.92)
    assert step["roofline_ms"] == pytest.approx(84.92, abs=0.01)
    assert step["prefill"] == [[2048, 0]]
    assert set(found["sources"]) == {"Roofline", "aiconfigurator"}


def test_without_the_package_the_roofline_stands_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_times_command, "is_installed", lambda: False)
    ran = run(capsys, *LLAMA)
    assert ran.code == 0
    assert "aiconfigurator: not installed; pip install 'kvfabric[aic]'." in ran.out
    no_nvlink = run(capsys, *LLAMA[:4], "l40s", *LLAMA[5:])
    assert no_nvlink.code == 2
    assert "no roofline, and aiconfigurator: not installed" in no_nvlink.err


def test_what_it_says_can_be_used_without_it(
    handle: type[Handle], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "llama.json"
    assert run(capsys, *LLAMA, "--out", str(table)).code == 0
    assert handle.asked is not None
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    asked = run(capsys, "simulate", str(path), "--format", "json")
    path.write_text(SCENARIO.replace("{kind: aic}", "{kind: step-times, path: llama.json}"))
    read = run(capsys, "simulate", str(path), "--format", "json")
    assert (asked.code, read.code) == (0, 0)
    first, second = json.loads(asked.out), json.loads(read.out)
    assert first["step_time_source"].startswith("published: aiconfigurator-core 0.12.0")
    assert "prompt tokens 168.8 ms" in first["step_time_source"]
    for found in (first, second):
        del found["step_time_source"]
    assert first == second


def test_plan_and_simulate_say_what_step_times_they_used(
    handle: type[Handle], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.yaml"
    few = SCENARIO.replace("prefill: 20, decode: 12", "prefill: 2, decode: 4")
    path.write_text(few.replace("num_blocks: 9000", "decode_tp: 4"))
    for command in ("simulate", "plan"):
        text = " ".join(run(capsys, command, str(path)).out.split())
        assert handle.asked is not None
        assert "by the roofline of h100-sxm-80gb 167.9 and 15.4 ms" in text
        assert "Their error: not known for this model and GPU" in text


BROKEN = {
    "gpu": (("gpu: h100-sxm-80gb", "gpu: rtx-4090"), "tiny.yaml: perf: aiconfigurator has no"),
    "model": (("model: llama-3.1-70b", "model: gpt2"), "tiny.yaml: perf: aiconfigurator carries"),
    "tp": (("tp: 8,", "tp: 3,"), "tp 3"),
    "dtype": (("tp: 8,", "tp: 8, weight_dtype: int4,"), "weights in int4 for aiconfigurator"),
    "system": (("kind: aic", "kind: aic, system: gb300"), "no vllm tables of 'gb300'"),
    "name": (("kind: aic", "kind: aic, model: a/b"), "carries no model 'a/b'"),
    "key": (("kind: aic", "kind: aic, backends: vllm"), "backends"),
    "out": (("", ""), "--out"),
}


@pytest.mark.parametrize(("change", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_what_cannot_be_used_is_one_message(
    handle: type[Handle],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    change: tuple[str, str],
    text: str,
) -> None:
    del handle
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO.replace(*change))
    asked = (*LLAMA, "--out", str(tmp_path)) if text == "--out" else ("simulate", str(path))
    ran = run(capsys, *asked)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert len(ran.err.splitlines()) == 1
