"""Print how fast SmolLM2 decodes and prefills, against ``transformers`` and against the floor.

    python bench/bench_engine.py [--threads 2] [--dtype bfloat16] [--context 512] [--batch 1 8 32]
        [--repeat 5] [--kv-dtype int8] [--no-transformers] [--no-compiled] [--profile]

Both run the same weights in one process, in turn, several times; the best of each counts. Decode:
ms per step of a batch whose requests all have the context, its KV cache filled with noise;
``transformers`` runs ``generate`` on a cache filled alike. The floor is what a step must read
(weights, and K and V of the contexts) over the memory bandwidth measured here; CPU ms are of all
threads together. A busy machine shows in wall ms well above CPU ms / threads.
"""

import argparse
import sys
import time  # noqa: TID251 — a bench reads a clock
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kvfabric.engine.executor_port import EngineStep, NewRequest, Sampling, ScheduledTokens
from kvfabric.engine.kv_tensors import PlainKvTensors
from kvfabric.engine.model_sources import ModelSource, open_model
from kvfabric.engine.torch_executor import TorchExecutor
from kvfabric.engine.weights import DecoderWeights, weight_bytes

BLOCK_SIZE = 16
STEPS = 4
ASKED = {1: 1.7, 8: 2.7, 32: 4.0}  # times transformers, at 512 tokens of context
ASKED_PREFILL = 1900  # tokens/s


class Timing(NamedTuple):
    """The best of several runs, per step."""

    wall_ms: float
    cpu_ms: float


def timed(run: Callable[[], object], steps: int) -> Timing:
    """Time one run of some steps."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Timing(1000 * wall / steps, 1000 * cpu / steps)


def best(timings: list[Timing]) -> Timing:
    """Return the least wall and the least CPU time."""
    return Timing(min(t.wall_ms for t in timings), min(t.cpu_ms for t in timings))


def read_bandwidth() -> float:
    """Return bytes/s at which memory is read, best of several sums over 512 MB."""
    data = torch.ones(64 << 20, dtype=torch.int64)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - start)
    return data.numel() * 8 / min(times)


class OurDecode:
    """A batch in our engine."""

    def __init__(
        self, source: ModelSource, weights: DecoderWeights, batch: int, options: Any
    ) -> None:
        """Fill a cache and let the executor know the requests."""
        self.context, self.num_sent = options.context, 0
        per_request = -(-(self.context + STEPS * (options.repeat + 2)) // BLOCK_SIZE)
        self.executor = TorchExecutor(
            source.spec,
            weights,
            num_blocks=1 + batch * per_request,
            block_size=BLOCK_SIZE,
            kv_dtype=options.kv_dtype,
            compiled=False if options.no_compiled else None,
        )
        if isinstance(self.executor.kv, PlainKvTensors):
            self.executor.kv.pool.normal_()
        # As a pool that has been in use hands blocks out: not in order.
        order = (torch.randperm(batch * per_request) + 1).tolist()
        sampling = Sampling(10**6, ignore_eos=True)
        prompt = tuple(i % 1000 for i in range(self.context))
        self.new = tuple(NewRequest(i, prompt, sampling, (5,)) for i in range(batch))
        self.tables = [tuple(order[i * per_request :][:per_request]) for i in range(batch)]

    def run(self) -> None:
        """Decode some steps."""
        for _ in range(STEPS):
            parts = tuple(
                ScheduledTokens(i, self.context, 1, True, self.num_sent, table[self.num_sent :])
                for i, table in enumerate(self.tables)
            )
            self.executor.run(EngineStep(self.new, parts))
            self.new, self.num_sent = (), len(self.tables[0])
            self.context += 1


def transformers_model(source: ModelSource, dtype: torch.dtype) -> Any:
    """Return the model of ``transformers`` with the same weights."""
    import transformers  # noqa: PLC0415

    spec, tensors = source.spec, source.tensors()
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm_eps,
        rope_theta=spec.rope.theta if spec.rope else None,
        tie_word_embeddings=True,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.load_state_dict({name: tensors.get(name) for name in tensors.names}, strict=False)
    model.tie_weights()
    model.generation_config.pad_token_id = 0
    return model


def their_decode(model: Any, batch: int, context: int) -> Callable[[], object]:
    """Return a run of ``generate`` on a filled cache."""
    import transformers  # noqa: PLC0415

    config, cache = model.config, transformers.DynamicCache()
    for layer in range(config.num_hidden_layers):
        shape = (batch, config.num_key_value_heads, context, config.head_dim)
        cache.update(*(torch.randn(shape, dtype=model.dtype) for _ in range(2)), layer)
    ids = torch.full((batch, context + 1), 7)

    def run() -> object:
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
        )

    return run


def our_prefill(source: ModelSource, weights: DecoderWeights, options: Any) -> Callable[[], object]:
    """Return a prefill of one prompt."""
    count = options.context
    blocks = tuple(range(1, 2 + count // BLOCK_SIZE))
    executor = TorchExecutor(
        source.spec, weights, num_blocks=2 + len(blocks), block_size=BLOCK_SIZE,
        kv_dtype=options.kv_dtype,
    )  # fmt: skip
    new = NewRequest(1, tuple(i % 1000 for i in range(count)), Sampling(1))
    step = EngineStep((new,), (ScheduledTokens(1, 0, count, True, 0, blocks),), gone=(1,))
    return lambda: executor.run(step)


def print_decode(batch: int, ours: Timing, theirs: Timing | None, floor_ms: float) -> None:
    """Print one line."""
    line = f"decode  B={batch:<3} ours {ours.wall_ms:7.1f} wall ms {ours.cpu_ms:7.1f} CPU ms"
    line += f"  {1000 * batch / ours.wall_ms:6.0f} tok/s  floor {floor_ms:5.1f} ms"
    line += f" (x{ours.wall_ms / floor_ms:.1f})"
    if theirs is not None:
        line += f"  transformers {theirs.wall_ms:7.1f} wall {theirs.cpu_ms:7.1f} CPU"
        line += f"  ratio {theirs.wall_ms / ours.wall_ms:.2f} wall"
        line += f" {theirs.cpu_ms / ours.cpu_ms:.2f} CPU (asked {ASKED.get(batch, '-')})"
    print(line, flush=True)


def profile(run: Callable[[], object]) -> None:
    """Print where the time of one run goes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        run()
    print(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=16))


def bench_decode(
    source: ModelSource,
    weights: DecoderWeights,
    model: Any,
    batch: int,
    bandwidth: float,
    options: Any,
) -> None:
    """Time the decoding of one batch, ours and theirs in turn."""
    case = OurDecode(source, weights, batch, options)
    case.run()
    if options.profile:
        profile(case.run)
    ours, theirs = [], []
    for _ in range(options.repeat):
        ours.append(timed(case.run, STEPS))
        if model is not None:
            theirs.append(timed(their_decode(model, batch, options.context), STEPS))
    read = weight_bytes(weights)
    read += batch * options.context * case.executor.kv.layout.block_bytes // BLOCK_SIZE
    floor_ms = 1000 * read / bandwidth
    print_decode(batch, best(ours), best(theirs) if theirs else None, floor_ms)


def bench_prefill(source: ModelSource, weights: DecoderWeights, model: Any, options: Any) -> None:
    """Time the prefill of one prompt."""
    prefill = our_prefill(source, weights, options)
    prefill()
    if options.profile:
        profile(prefill)
    ours, theirs = [], []
    ids = torch.full((1, options.context), 7)
    for _ in range(options.repeat):
        ours.append(timed(prefill, 1))
        if model is not None:
            with torch.inference_mode():
                theirs.append(timed(lambda: model(ids, logits_to_keep=1), 1))
    rate = 1000 * options.context / best(ours).wall_ms
    print(f"prefill {options.context}: ours {best(ours)}, {rate:.0f} tok/s (asked {ASKED_PREFILL})")
    if theirs:
        print(f"prefill {options.context}: transformers {best(theirs)}")


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-dtype")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--no-prefill", action="store_true")
    parser.add_argument("--no-compiled", action="store_true", help="decode with torch alone")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    source = open_model("smollm2")
    weights = source.load_weights(options.dtype)
    model = None
    if not options.no_transformers:
        model = transformers_model(source, weights.embedding.dtype)
    bandwidth = read_bandwidth()
    print(f"memory read {bandwidth / 1e9:.1f} GB/s, weights {weight_bytes(weights) / 1e6:.0f} MB")
    for batch in options.batch:
        bench_decode(source, weights, model, batch, bandwidth, options)
    if not options.no_prefill:
        bench_prefill(source, weights, model, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
