"""``kvfabric generate``: prompts in, text out, and what the KV cache did."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvfabric.app.record_command import record
from kvfabric.engine.cluster_settings import ClusterSettings, handoff_mode
from kvfabric.engine.executor_port import Sampling
from kvfabric.engine.executor_spec import ExecutorSpec, make_executor
from kvfabric.engine.generate import Generated, generate_without_cache, generator
from kvfabric.engine.requirements import require_engine
from kvfabric.errors import ConfigError
from kvfabric.serving.coordinator_config import HandoffMode
from kvfabric.units import NS_PER_S, ceil_div, format_bytes, format_ns

if TYPE_CHECKING:
    from kvfabric.engine.model_sources import ModelSource
    from kvfabric.engine.tokenizer import Tokenizer


def run_generate(prompts: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return what the command prints.

    Args:
        prompts: answered one after the other, so that a later one can hit the blocks of an earlier.
        options: of the command line.

    Raises:
        ConfigError: a model that is not there, packages that are missing, values out of range.
    """
    require_engine()
    from kvfabric.engine.model_sources import open_model

    source = open_model(options["model"])
    tokenizer = source.tokenizer()
    prompt_ids = [_encode(source, tokenizer, prompt, options) for prompt in prompts]
    sampling = _sampling(options)
    settings = _settings(source, prompt_ids, options)
    executor = ExecutorSpec(
        model=options["model"],
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        dtype=options["dtype"],
        kv_dtype=options["kv_dtype"],
        device=options["device"],
        num_threads=options["threads"],
    )
    results = _generate(prompt_ids, sampling, settings, executor, has_cache=options["kv_cache"])
    texts = [_text(tokenizer, result, sampling) for result in results]
    if options["output_format"] == "json":
        return json.dumps(_as_dict(options, prompts, texts, results), indent=2) + "\n"
    shown = zip(texts, results, strict=True)
    return "\n".join(_shown(text, result, settings.block_size) for text, result in shown)


def run_record(path: Path, options: Mapping[str, Any]) -> str:
    """Measure step times into a file, and return what the command prints."""
    require_engine()
    return record(path, options)


def _generate(
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    settings: ClusterSettings,
    executor: ExecutorSpec,
    *,
    has_cache: bool,
) -> list[Generated]:
    if not has_cache:
        made = make_executor(executor)
        size = settings.block_size
        return [generate_without_cache(made.executor, ids, sampling, size) for ids in prompts]
    with generator(settings, executor) as running:
        return [running.generate(ids, sampling) for ids in prompts]


def _encode(
    source: "ModelSource", tokenizer: "Tokenizer", prompt: str, options: Mapping[str, Any]
) -> list[int]:
    if options["raw"]:
        ids = tokenizer.encode(prompt)
    else:
        text = source.chat_template.render([{"role": "user", "content": prompt}])
        ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise ConfigError("the prompt has no tokens", where="PROMPT", hint="Write some text")
    return ids


def _sampling(options: Mapping[str, Any]) -> Sampling:
    return Sampling(
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        seed=options["seed"],
        stop=tuple(options["stop"]),
    )


def _settings(
    source: "ModelSource", prompts: Sequence[Sequence[int]], options: Mapping[str, Any]
) -> ClusterSettings:
    longest = max(map(len, prompts)) + options["max_tokens"]
    if longest > source.spec.max_positions:
        raise ConfigError(
            f"{longest} tokens of prompt and output, the model has {source.spec.max_positions} "
            "positions",
            where="--max-tokens",
            hint="Write fewer, or shorten the prompt",
        )
    size = options["block_size"]
    needed = sum(ceil_div(len(ids) + options["max_tokens"], size) for ids in prompts) + 1
    num_blocks = options["kv_blocks"] or needed
    if not options["kv_cache"]:
        if options["prefill"] > 1 or options["decode"]:
            raise ConfigError(
                "several workers and no KV cache",
                where="--no-kv-cache",
                hint="Leave --prefill and --decode out",
            )
        num_blocks = ceil_div(longest, size) + 1
    return ClusterSettings(
        num_prefill=options["prefill"],
        num_decode=options["decode"],
        num_blocks=num_blocks,
        block_size=size,
        max_model_len=longest,
        handoff=_handoff(options),
        num_layer_groups=1 if options["stream_kv"] else options["layer_groups"],
        kv_transport=options["kv_transport"],
    )


def _handoff(options: Mapping[str, Any]) -> HandoffMode:
    return HandoffMode.LAYER_WISE if options["stream_kv"] else handoff_mode(options["handoff"])


def _text(tokenizer: "Tokenizer", result: Generated, sampling: Sampling) -> str:
    from kvfabric.engine.detokenizer import cut_at_stop

    return cut_at_stop(tokenizer.decode(result.token_ids), sampling.stop)


def _shown(text: str, result: Generated, block_size: int) -> str:
    """Return text and figures of one prompt."""
    tpot = result.tpot_ns
    lines = [
        ("prompt", f"{result.num_prompt_tokens} tokens, {result.num_cached_tokens} found in cache"),
        ("output", f"{len(result.token_ids)} tokens, ended by {result.finish.value}"),
        ("TTFT", format_ns(result.ttft_ns)),
    ]
    if tpot is not None:
        rate = f", {NS_PER_S / tpot:.1f} tokens/s" if tpot else ""
        lines.append(("TPOT", format_ns(tpot) + rate))
    if result.num_blocks:
        plural = "" if result.num_blocks == 1 else "s"
        blocks = f"{result.num_blocks} block{plural} of {block_size} tokens"
        lines.append(("KV cache", f"{blocks}, {format_bytes(result.kv_bytes)}"))
    else:
        lines.append(("KV cache", "none"))
    lines.append(("computed", f"{result.num_computed_tokens} tokens"))
    if result.handoff_bytes:
        moved = f"{format_bytes(result.handoff_bytes)} in {format_ns(result.handoff_ns)}"
        lines.append(("hand-off", moved))
    figures = "".join(f"  {name:<9} {value}\n" for name, value in lines)
    return f"{text.strip()}\n\n{figures}"


def _as_dict(
    options: Mapping[str, Any],
    prompts: Sequence[str],
    texts: Sequence[str],
    results: Sequence[Generated],
) -> dict[str, object]:
    return {
        "model": options["model"],
        "dtype": options["dtype"],
        "block_size": options["block_size"],
        "kv_cache": options["kv_cache"],
        "results": [
            {
                "prompt": prompt,
                "text": text,
                "token_ids": list(result.token_ids),
                "finish_reason": result.finish.value,
                "num_prompt_tokens": result.num_prompt_tokens,
                "num_cached_tokens": result.num_cached_tokens,
                "num_output_tokens": len(result.token_ids),
                "num_computed_tokens": result.num_computed_tokens,
                "num_blocks": result.num_blocks,
                "kv_bytes": result.kv_bytes,
                "ttft_ns": result.ttft_ns,
                "tpot_ns": result.tpot_ns,
                "handoff_bytes": result.handoff_bytes,
                "handoff_ns": result.handoff_ns,
            }
            for prompt, text, result in zip(prompts, texts, results, strict=True)
        ],
    }
