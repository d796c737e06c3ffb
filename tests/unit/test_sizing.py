"""From users and context to GPUs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.catalog.gpus import gpu
from kvfabric.catalog.models import model_config
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.plan.sizing import Sizing, size, sizing_to_dict
from kvfabric.plan.sizing_lines import sizing_lines
from kvfabric.plan.sizing_request import SizingRequest


def request_for(
    model: str = "llama-3.1-70b",
    *,
    gpu_name: str = "h100-sxm-80gb",
    users: int = 100,
    context: int = 32_000,
    tp: int | None = None,
    pp: int = 1,
    kv_memory_gib: float | None = None,
) -> SizingRequest:
    return SizingRequest(
        model_name=model,
        geometry=geometry_from_config(model_config(model), where=model),
        gpu=gpu(gpu_name),
        num_users=users,
        num_context_tokens=context,
        tp=tp,
        pp=pp,
        kv_memory_gib=kv_memory_gib,
    )


def changed(**changes: object) -> SizingRequest:
    plain = request_for("llama-3.1-8b", users=1, context=1_000)
    values = {name: getattr(plain, name) for name in SizingRequest.__dataclass_fields__}
    return SizingRequest(**(values | changes))


HUNDRED_USERS = size(request_for())


def test_a_hundred_long_contexts_take_thirteen_gpus_for_kv_alone() -> None:
    # 327,680 B/token x 32,000 x 100 = 1.049 TB; 79.19 GiB visible per H100.
    need = HUNDRED_USERS.need
    assert need.kv_bytes_per_token == 327_680
    assert need.kv_bytes_per_user == 10_485_760_000
    assert need.kv_bytes_total == 1_048_576_000_000
    assert need.gpus_for_kv == 13


def test_equation_is_shown_with_its_numbers() -> None:
    assert HUNDRED_USERS.need.equations == (
        "2 x 80 layers x 8 kv heads x 128 x 2 bytes = 327,680 B/token",
    )


def test_weights_and_reserves_double_the_gpus() -> None:
    # By hand: 0.9 x 79.19 - 32.85 - 2.01 - 2.13 = 34.27 GiB per GPU of four; blocks of 1.25 MiB on
    # each; 28,076 usable blocks hold 14 contexts of 2,000 blocks.
    assert HUNDRED_USERS.tp == 4
    assert HUNDRED_USERS.memory.kv_bytes_per_gpu / 2**30 == pytest.approx(34.27, abs=0.01)
    assert HUNDRED_USERS.pool.num_blocks == 28_077
    assert HUNDRED_USERS.pool.blocks_per_user == 2_000
    assert HUNDRED_USERS.pool.users_per_worker == 14
    assert (HUNDRED_USERS.workers_needed, HUNDRED_USERS.gpus_needed) == (8, 32)
    assert HUNDRED_USERS.fits
    assert HUNDRED_USERS.shortfall_bytes == 0


def test_smaller_worker_than_the_default_does_not_fit() -> None:
    found = size(request_for(tp=2))
    assert not found.fits
    assert found.gpus_needed is None
    assert found.tp_rule == "given"


def test_weights_that_do_not_fit_say_by_how_much() -> None:
    found = size(request_for("llama-3.1-405b"))
    assert not found.fits
    assert found.tp == 8
    assert found.pool.num_blocks == 0
    assert found.shortfall_bytes > -found.memory.kv_bytes_per_gpu > 0
    assert "weights and reserves exceed the memory of a GPU by 29.38 GB" in found.verdict


def test_context_that_does_not_fit_says_by_how_much() -> None:
    found = size(request_for("llama-3.1-8b", context=131_072, tp=1, kv_memory_gib=15.9))
    assert not found.fits
    # 8,192 blocks and the null block of 2 MiB against 15.9 GiB.
    assert found.shortfall_bytes == 8_193 * 2 * 2**20 - round(15.9 * 2**30)
    assert "lacks 109.5 MB on each GPU" in found.verdict


def test_given_kv_memory_gives_the_logged_pool() -> None:
    # vLLM 0.19.0, Llama-3.1-8B on one H100: 58.11 GiB, 476,016 tokens, 58.11 requests.
    found = size(request_for("llama-3.1-8b", context=8_192, kv_memory_gib=58.11))
    assert found.pool.num_tokens == pytest.approx(476_016, rel=0.001)
    assert found.pool.max_concurrency == pytest.approx(58.11, rel=0.001)
    assert found.memory.weight_bytes is None
    assert found.tp == 1


def test_given_kv_memory_needs_no_weights() -> None:
    found = size(request_for("kimi-linear-48b-a3b", kv_memory_gib=20))
    assert found.fits


def test_weights_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="kimi_linear"):
        size(request_for("kimi-linear-48b-a3b"))


def test_given_weights_replace_the_count() -> None:
    found = size(changed(total_weight_bytes=16 * 10**9))
    assert found.memory.weight_bytes == found.memory.weight_bytes_per_gpu == 16 * 10**9


def test_latent_cache_gains_nothing_from_more_ranks() -> None:
    four, eight = (
        size(request_for("deepseek-v3", gpu_name="b200-sxm-180gb", tp=tp)) for tp in (4, 8)
    )
    assert four.memory.kv_bytes_per_token_per_gpu == eight.memory.kv_bytes_per_token_per_gpu


def test_pipeline_ranks_share_the_layers() -> None:
    found = size(request_for(tp=4, pp=2))
    assert found.fits
    assert found.gpus_needed == (found.workers_needed or 0) * 8


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("deepseek-v3", "61 layers x 576 latent elements x 2 bytes = 70,272 B/token"),
        (
            "mimo-v2-flash",
            (
                "39 sliding layers x 8 kv heads x (192 + 128) x 2 bytes = 199,680 B/token, "
                "at most 128 tokens"
            ),
        ),
        ("deepseek-v3.2", "61 layers x 132 bytes of index = 8,052 B/token"),
        ("gpt-oss-120b", "together 73,728 B/token"),
        (
            "qwen3-next-80b-a3b",
            "36 state layers x 1,097,728 bytes = 39,518,208 B per user, whatever the context",
        ),
    ],
)
def test_equation_takes_the_form_of_the_attention(model: str, line: str) -> None:
    found = size(request_for(model, kv_memory_gib=60))
    assert line in found.need.equations


def test_one_byte_elements_are_written_so() -> None:
    assert "x 1 byte =" in size(changed(kv_dtype="fp8")).need.equations[0]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_users": 0}, "num_users"),
        ({"num_context_tokens": -1}, "num_context_tokens"),
        ({"tp": 3}, "does not divide 32 attention heads"),
        ({"tp": 0}, "tp is 0"),
        ({"pp": 0}, "pipeline size 0"),
        ({"block_size": 0}, "block_size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 500}, "longest request of 500"),
        ({"num_context_tokens": 200_000}, "positions for 131,072 tokens"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"kv_memory_gib": 0.0}, "KV memory of 0.0 GiB"),
        ({"kv_memory_gib": float("nan")}, "KV memory of nan GiB"),
        ({"kv_dtype": "nvfp4"}, "nvfp4"),
        ({"weight_dtype": "q8"}, "unknown weight format 'q8'"),
    ],
)
def test_bad_numbers_are_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        size(changed(**changes))


def test_no_more_users_than_the_engine_runs() -> None:
    assert size(changed(max_num_seqs=3)).pool.users_per_worker == 3


def test_quantized_weights_leave_more_for_kv() -> None:
    plain, small = size(changed()), size(changed(weight_dtype="fp8"))
    assert small.memory.kv_bytes_per_gpu > plain.memory.kv_bytes_per_gpu


def test_report_is_json_in_a_fixed_order() -> None:
    report = sizing_to_dict(HUNDRED_USERS)
    assert json.loads(json.dumps(report)) == report
    assert list(report)[:4] == ["model", "gpu", "users", "context_tokens"]
    assert list(report)[-3:] == ["shortfall_bytes", "verdict", "notes"]
    assert report["gpus_for_kv"] == 13


@pytest.mark.parametrize("kv_memory_gib", [None, 40.0])
def test_lines_end_with_the_verdict(kv_memory_gib: float | None) -> None:
    found = size(request_for(kv_memory_gib=kv_memory_gib))
    lines = sizing_lines(found)
    assert any("= 327,680 B/token" in line for line in lines)
    assert lines[-1] == found.verdict


def test_lines_say_when_there_is_no_room() -> None:
    assert "  no room for a KV block" in sizing_lines(size(request_for("llama-3.1-405b")))


def holds_all(found: Sizing) -> bool:
    assert found.workers_needed is not None
    return found.workers_needed * found.pool.users_per_worker >= found.request.num_users


@given(
    st.sampled_from(["llama-3.1-8b", "gemma-2-9b", "deepseek-v3", "qwen3.5-27b"]),
    st.integers(1, 2_000),
    st.integers(1, 8_000),
)
def test_workers_hold_all_users_and_none_is_idle(model: str, users: int, context: int) -> None:
    found = size(request_for(model, gpu_name="b200-sxm-180gb", users=users, context=context))
    assert found.fits
    assert holds_all(found)
    assert ((found.workers_needed or 0) - 1) * found.pool.users_per_worker < users
