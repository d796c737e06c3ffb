"""What is asked of aiconfigurator-core, in its names; what it cannot tell is one message."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aic_stand_in import CARRIED, Handle, stand_in

from kvfabric.app import aic_engine
from kvfabric.app.aic_engine import AicEngine, AicRequest, carried_models, carried_name, system_of
from kvfabric.app.model_words import words_between
from kvfabric.errors import ConfigError

LLAMA = AicRequest(model=CARRIED[0], system="h100_sxm", tp=8)


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[type[Handle]]:
    with stand_in(tmp_path) as found:
        yield found


def test_a_worker_is_asked_for_in_its_names(handle: type[Handle]) -> None:
    engine = AicEngine(LLAMA)
    assert handle.asked == (
        (CARRIED[0], "h100_sxm", "vllm"),
        {"tp_size": 8, "moe_tp_size": 8, "moe_ep_size": 1, "kvcache_quant_mode": "bfloat16"},
    )
    assert engine.name == (
        "aiconfigurator-core 0.12.0, vllm 0.24.0 tables of h100_sxm:"
        " meta-llama/Meta-Llama-3.1-70B tp 8"
    )
    assert engine.prefill_ns(1000, 0) == 45_000_000
    assert engine.prefill_ns(1000, 100_000) == 45_100_000
    assert engine.decode_ns(10, 1000) == 9_800_000


def test_dtypes_and_experts_are_passed_on(handle: type[Handle]) -> None:
    AicEngine(replace(LLAMA, weights="fp8", kv_element_bytes=1, is_expert_parallel=True))
    assert handle.asked is not None
    assert handle.asked[1] == {
        "tp_size": 8,
        "moe_tp_size": 1,
        "moe_ep_size": 8,
        "gemm_quant_mode": "fp8",
        "moe_quant_mode": "fp8",
        "kvcache_quant_mode": "fp8",
    }


def test_its_warnings_are_kept_off_stderr(
    handle: type[Handle], caplog: pytest.LogCaptureFixture
) -> None:
    AicEngine(LLAMA)
    assert handle.asked is not None
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("llama-3.1-70b", CARRIED[0]), ("mixtral-8x7b", CARRIED[2])],
)
def test_our_models_are_found_among_its_own(handle: type[Handle], ours: str, theirs: str) -> None:
    assert carried_name(ours, carried_models()) == theirs
    AicEngine(replace(LLAMA, model=theirs))
    assert handle.asked is not None


def test_words_that_tell_sizes_apart() -> None:
    assert words_between("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B-FP8") == frozenset({"fp8"})
    assert words_between("qwen3-235b-a22b", "Qwen/Qwen3-30B-A3B") is None
    assert words_between("deepseek-v3", "deepseek-ai/DeepSeek-V3.2") is None


def test_a_quantized_configuration_keeps_what_says_so(handle: type[Handle], tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("config.json", "hf_quant_config.json"):
        (own / name).write_text("{}")
    AicEngine(replace(LLAMA, model=str(own / "config.json")))
    assert handle.files == {"config.json", "hf_quant_config.json"}
    configs = tmp_path / "model_configs"
    (configs / "x--Mixtral-8x7B-v0.1_hf_quant_config.json").write_text("{}")
    AicEngine(replace(LLAMA, model=CARRIED[2]))
    assert handle.files == {"config.json", "hf_quant_config.json"}


def test_nothing_is_looked_for_in_the_network(handle: type[Handle], tmp_path: Path) -> None:
    AicEngine(replace(LLAMA, model=CARRIED[2]))  # carried, but downloaded when asked for by name
    assert handle.asked is not None
    assert Path(handle.asked[0][0]).name != "Mixtral-8x7B-v0.1"
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text("{}")
    for named in (own, own / "config.json"):
        AicEngine(replace(LLAMA, model=str(named)))
    with pytest.raises(ConfigError, match=r"carries no model 'no/such', and no config\.json lies"):
        AicEngine(replace(LLAMA, model="no/such"))


BROKEN = {
    "tp": (replace(LLAMA, tp=3), "tp 3 on h100_sxm: num_heads 64 should be divisible"),
    "system": (replace(LLAMA, system="h20_sxm"), "no vllm tables of 'h20_sxm'.*gb200, h100_sxm"),
    "backend": (replace(LLAMA, backend="sglang"), "no sglang tables of 'h100_sxm'"),
    "weights": (replace(LLAMA, weights="int4"), "weights in int4.*auto, bf16, fp16, fp8"),
    "kv": (replace(LLAMA, kv_element_bytes=4), "a KV cache of 4 bytes per element"),
}


@pytest.mark.parametrize(("request_", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_what_it_cannot_tell_is_one_message(
    handle: type[Handle], request_: AicRequest, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        AicEngine(request_)
    assert handle.asked is None


def test_other_gpus_and_models_are_told() -> None:
    assert system_of("h200-sxm-141gb") == "h200_sxm"
    with pytest.raises(ConfigError, match=r"no tables of rtx-4090\. It has those of a100-sxm"):
        system_of("rtx-4090")
    with pytest.raises(ConfigError, match="carries no gpt2"):
        carried_name("gpt2", CARRIED)


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aic_engine, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"not installed\. Run: pip install 'kvfabric\[aic\]'"):
        AicEngine(LLAMA)
    with pytest.raises(ConfigError, match="not installed"):
        carried_models()
