"""``kvfabric generate`` from the command line, with a tiny random model."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvfabric.app.main import cli
from kvfabric.errors import ConfigError

pytest.importorskip("torch")

MODEL = ["--model", "random:llama", "--dtype", "float32", "--threads", "1", "--max-tokens", "6"]


def generate(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["generate", *MODEL, *arguments], catch_exceptions=False)
    return result.stdout


def test_the_text_and_what_the_cache_did() -> None:
    shown = generate("hello there", "--raw", "--block-size", "4")
    assert "prompt    11 tokens, 0 found in cache" in shown
    assert "KV cache  4 blocks of 4 tokens" in shown
    assert "TTFT" in shown
    assert "TPOT" in shown


def test_with_and_without_cache_and_disaggregated_the_tokens_are_equal() -> None:
    plain = json.loads(generate("hello", "--format", "json"))
    variants = (
        ["--no-kv-cache"],
        ["--decode", "1"],
        ["--decode", "1", "--stream-kv"],
        ["--decode", "1", "--handoff", "layer-wise", "--layer-groups", "2"],
    )
    for options in variants:
        other = json.loads(generate("hello", "--format", "json", *options))
        assert other["results"][0]["token_ids"] == plain["results"][0]["token_ids"]
    (result,) = plain["results"]
    assert result["num_computed_tokens"] == result["num_prompt_tokens"] + 5
    assert other["results"][0]["handoff_bytes"] > 0


def test_a_second_prompt_finds_what_it_shares_with_the_first() -> None:
    run = json.loads(generate("a long beginning, then", "a long beginning, or", "--format", "json"))
    first, second = run["results"]
    assert first["num_cached_tokens"] == 0
    assert second["num_cached_tokens"] >= 16


def test_sampling_repeats_with_its_seed() -> None:
    options = ("hello", "--format", "json", "--temperature", "1.5", "--seed")
    runs = [json.loads(generate(*options, seed)) for seed in ("1", "1", "2")]
    ids = [run["results"][0]["token_ids"] for run in runs]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["hello", "--model", "nothere"], "model 'nothere' not found"),
        (["hello", "--max-tokens", "1000000"], "positions"),
        (["hello", "--no-kv-cache", "--decode", "1"], "several workers and no KV cache"),
        (["", "--raw"], "the prompt has no tokens"),
        (["hello", "--kv-blocks", "2"], "KV blocks"),
    ],
)
def test_what_cannot_be_is_told_in_one_message(arguments: list[str], text: str) -> None:
    with pytest.raises(Exception, match=text) as caught:
        generate(*arguments)
    assert isinstance(caught.value, ConfigError) or "KV blocks" in text


def test_workers_in_their_processes_can_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    generate("--record", str(path), "--decode", "1")
    recorded = json.loads(path.read_text())
    assert recorded["transfer"]["bytes_per_s"] > 0
    assert "1 + 1 workers" in recorded["source"]


def test_a_recorded_machine_can_be_simulated(tmp_path: Path) -> None:
    said = generate("--record", str(tmp_path / "steps.json"))
    assert "step times of random:llama" in said
    (tmp_path / "scenario.yaml").write_text("""
schema_version: 1
name: this machine
model: llama-3.1-8b
workers: {prefill: 1, decode: 0, tp: 1, num_blocks: 500, max_model_len: 1000}
perf: {kind: step-times, path: steps.json}
workload:
  kind: generated
  arrivals: {kind: poisson, rate: 1 /s}
  prompt: {kind: uniform, minimum: 20, maximum: 200}
  output: {kind: uniform, minimum: 1, maximum: 20}
  requests: 10
""")
    command = ["simulate", str(tmp_path / "scenario.yaml"), "--format", "json"]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    answer = json.loads(result.stdout)
    assert "kvfabric generate --record: random:llama" in answer["step_time_source"]
