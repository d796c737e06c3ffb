"""``kvfabric generate --record``: step times of this machine into a file for ``simulate``."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvfabric.app.output import write_text
from kvfabric.app.step_times_file import step_times_json
from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_port import Sampling
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec, make_executor
from kvfabric.engine.generate import generator
from kvfabric.engine.profile_in_place import LoadShape, fit_step_times
from kvfabric.engine.profile_recorder import control_ns, needed_blocks, record_step_times
from kvfabric.engine.record_in_place import run_in_place
from kvfabric.perf.step_times import StepTimes
from kvfabric.protocol.provenance import Source, SourceKind

BATCHES, CONTEXTS = (1, 2, 4, 8, 16), (32, 128, 512)
CHUNKS, HISTORIES = (16, 64, 256, 512), (0, 256)
FITTED_CHUNKS = (16, 32, 64, 128, 192, 256, 384, 512)  # of a curve: more of them cost nothing


def measure_control_ns(num_decode: int) -> int:
    """Return what a step takes beyond its executor, measured with one that takes no time."""
    log = DecisionLog()
    settings = ClusterSettings(num_decode=num_decode, num_blocks=64, max_model_len=256)
    spec = ExecutorSpec(model=FAKE, num_blocks=64, block_size=settings.block_size)
    with generator(settings, spec, log=log) as running:
        running.generate(range(40), Sampling(64))
    return control_ns(log)


def _in_place(spec: ExecutorSpec, options: Mapping[str, Any], source: Source) -> StepTimes:
    """Return the times of a cluster of such workers under load; they share this machine."""
    settings = ClusterSettings(
        num_prefill=options["prefill"],
        num_decode=options["decode"],
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        max_model_len=CHUNKS[-1],
        max_num_seqs=max(BATCHES),
    )
    return fit_step_times(
        run_in_place(settings, spec, LoadShape()),
        settings,
        batches=BATCHES,
        contexts=CONTEXTS,
        chunks=FITTED_CHUNKS,
        histories=HISTORIES,
        source=source,
    )


def record(path: Path, options: Mapping[str, Any]) -> str:
    """Measure, write the file, and return what to say.

    Raises:
        ConfigError: the model is not there, or the file cannot be written.
    """
    size = options["block_size"]
    spec = ExecutorSpec(
        model=options["model"],
        num_blocks=needed_blocks(BATCHES, [*CONTEXTS, CHUNKS[-1] + HISTORIES[-1]], size),
        block_size=size,
        dtype=options["dtype"],
        kv_dtype=options["kv_dtype"],
        device=options["device"],
        num_threads=options["threads"],
    )
    threads = options["threads"] or "all"
    workers = f"{options['prefill']} + {options['decode']} workers"
    text = f"kvfabric generate --record: {spec.model}, {spec.dtype}, {threads} threads, {workers}"
    source = Source(SourceKind.MEASURED, text, datetime.now(UTC).date().isoformat())
    if options["prefill"] + options["decode"] > 1:
        times = _in_place(spec, options, source)
    else:
        times = record_step_times(
            make_executor(spec).executor,
            size,
            batches=BATCHES,
            contexts=CONTEXTS,
            chunks=CHUNKS,
            histories=HISTORIES,
            control_ns=measure_control_ns(0),
            source=source,
        )
    write_text(path, step_times_json(times), where="--record")
    return f"step times of {options['model']} on this machine are in {path}\n"
