"""Reading scenarios: every key misspelt in turn, shown with its line and the right word."""

from collections.abc import Iterator

import pytest
import yaml

from kvfabric.app.scenario_file import built_in_text, load_scenario, parse_scenario
from kvfabric.app.scenario_workload import GeneratedWorkload, TraceWorkload
from kvfabric.errors import ConfigError

GENERATED = """\
schema_version: 1
name: all keys
model: llama-3.1-8b
gpu: h100-sxm-80gb
users: 10
context_tokens: 2000
workers:
  prefill: 1
  decode: 1
  tp: 4
  kv_dtype: auto
  weight_dtype: auto
  block_size: 64
  max_num_seqs: 256
  max_num_batched_tokens: 8192
  max_model_len: 4096
  gpu_memory_utilization: 0.9
  enable_prefix_caching: true
fabric:
  nic_rate: 400 Gbit/s
  switch: 12.8 Tbit/s
  kinds:
    - {kind: clos, label: clos 2:1, radix: 32, tiers: 2, oversubscription: 2.0}
    - zcube
  load_balancing: [ecmp]
  queue_pairs: 4
  placement: split
workload:
  kind: generated
  arrivals: {kind: gamma, rate: 3 /s, cv: 3.0}
  prompt: {kind: lognormal, median: 600, sigma: 1.0, minimum: 16, maximum: 1000}
  output: {kind: empirical, values: [1, 2]}
  turns: {kind: uniform, minimum: 1, maximum: 4}
  think: {kind: exponential, mean: 5 s}
  prefixes: {groups: 5, tokens: 100, zipf_exponent: 1.2}
  requests: 20
  hash_block_tokens: 64
slo: {ttft: 1 s, tpot: 50 ms}
router: {policy: round_robin, signal_interval: 50 ms}
handoff: {deadline: 60 s}
compare_aggregated: false
seed: 3
"""
TRACE = """\
workload:
  kind: trace
  path: trace.jsonl
  format: mooncake
  on_bad_rows: skip
  limit: 3
  start: 1 s
  duration: 2 s
  speedup: 2
"""
HEAD, REST = GENERATED.split("workload:\n")
SCENARIOS = {"generated": GENERATED, "trace": HEAD + TRACE + REST[REST.index("slo:") :]}


def keys_of(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield from keys_of(value)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from keys_of(item)


# scenario, offset and line of every key, and the key
KEYS = [
    (name, key.start_mark.index, key.start_mark.line + 1, key.value)
    for name, text in SCENARIOS.items()
    for key in keys_of(yaml.compose(text, Loader=yaml.SafeLoader))
]
BLOCK_KEYS = [
    (name, index, line, key)
    for name, index, line, key in KEYS
    if not SCENARIOS[name][:index].rpartition("\n")[2].strip()
]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_with_all_keys_is_read(name: str) -> None:
    scenario = parse_scenario(SCENARIOS[name], "all.yaml")
    assert scenario.workload.kind == name


@pytest.mark.parametrize(("name", "index", "line", "key"), KEYS)
def test_misspelt_key_is_told_with_line_and_suggestion(
    name: str, index: int, line: int, key: str
) -> None:
    text = SCENARIOS[name]
    misspelt = text[: index + len(key)] + "x" + text[index + len(key) :]
    with pytest.raises(ConfigError) as caught:
        parse_scenario(misspelt, "all.yaml")
    message = str(caught.value)
    if "the key 'kind' is missing" in message:
        return  # which keys are right depends on it, so it is told first
    assert message.startswith(f"all.yaml:{line}: ")
    assert f"unknown key '{key}x'. Did you mean '{key}'?" in message


@pytest.mark.parametrize(("name", "index", "line", "key"), BLOCK_KEYS)
def test_key_twice_is_told_with_its_line(name: str, index: int, line: int, key: str) -> None:
    text = SCENARIOS[name]
    indent = text[:index].rpartition("\n")[2]
    twice = text[:index] + f"{key}: 1\n" + indent + text[index:]
    with pytest.raises(ConfigError, match=rf"^all\.yaml:{line + 1}: .*'{key}' stands twice"):
        parse_scenario(twice, "all.yaml")


def test_workload_kind_decides_the_keys() -> None:
    assert isinstance(parse_scenario(SCENARIOS["trace"], "a").workload, TraceWorkload)
    assert isinstance(parse_scenario(SCENARIOS["generated"], "a").workload, GeneratedWorkload)


def test_built_in_scenario_is_the_one_without_a_file() -> None:
    assert load_scenario(None) == parse_scenario(built_in_text(), "built-in")


def test_unit_decides_the_value() -> None:
    scenario = parse_scenario(SCENARIOS["generated"], "a")
    assert scenario.fabric is not None
    assert scenario.fabric.nic_rate == 400 * 10**9
    assert scenario.slo.tpot == 50_000_000
    assert scenario.router.signal_interval == 50_000_000


def test_number_of_other_mistakes_is_told() -> None:
    broken = SCENARIOS["generated"].replace("users: 10", "users: 0").replace("tp: 4", "tp: 0")
    with pytest.raises(ConfigError, match=r"^a:5: users: .*\(1 more after this one\)$"):
        parse_scenario(broken, "a")
