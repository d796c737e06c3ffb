"""A profile of the machine as it serves: every worker in its process, all of them busy.

``profile_recorder`` measures an executor that has the machine to itself. Workers that share cores,
memory bandwidth and the control with each other take longer: here a load runs through the
real cluster, and the times of its steps and transfers are read from the decision log. They include
what the control adds to each. What they are is a mean under that load: a machine that is less busy
is faster than they say.

A line is fitted to the steps (least squares, so that means are kept), not a table: steps of a load
have the shapes that they have.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.decision_log import NEVER_NS, DecisionLog, RecordedStep
from kvfabric.errors import ConfigError
from kvfabric.perf.step_times import StepTimes
from kvfabric.perf.transfer_times import TransferTimes
from kvfabric.perf.work import causal_pairs
from kvfabric.protocol.provenance import Source
from kvfabric.units import NS_PER_S

LEAST_SAMPLES = 8


class LoadShape(NamedTuple):
    """A load: how many requests are in flight, one number after the other, and their lengths."""

    num_in_flight: tuple[int, ...] = (1, 2, 4, 8)
    num_each: int = 6
    prompt_tokens: tuple[int, int] = (16, 384)
    output_tokens: tuple[int, int] = (8, 40)

    def lengths(self, seed: int) -> list[tuple[int, int]]:
        """Return prompt and output tokens of all requests."""
        random = Random(seed)  # noqa: S311 - a load, not a secret
        return [
            (random.randint(*self.prompt_tokens), random.randint(*self.output_tokens))
            for _ in range(self.num_each * len(self.num_in_flight))
        ]


Submit = Callable[[int, int, int], None]
"""Starts a request of an id, with so many tokens of prompt and output."""


def run_load(shape: LoadShape, submit: Submit, wait_ended: Callable[[int], None]) -> None:
    """Keep so many requests in flight as the shape says, until all have ended.

    Args:
        shape: of the load.
        submit: starts a request.
        wait_ended: waits until so many requests have ended, of all that were started.
    """
    lengths = shape.lengths(seed=3)
    for i, (num_prompt, num_output) in enumerate(lengths):
        wait_ended(i + 1 - shape.num_in_flight[i // shape.num_each])
        submit(i, num_prompt, num_output)
    wait_ended(len(lengths))


def fit_step_times(
    log: DecisionLog,
    settings: ClusterSettings,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    chunks: Sequence[int],
    histories: Sequence[int],
    source: Source,
) -> StepTimes:
    """Return step times from the steps of a run; see the module.

    Decodes: ``a + b * requests + c * tokens in their caches``. Prompts: ``a + b * tokens + c *
    pairs`` of a token and one it attends to. No term is negative. Steps that do both count with the
    prompts, less what ``MeasuredStepModel`` adds for the attention of their decodes.

    Raises:
        ConfigError: the run has too few steps of one kind.
    """
    steps = [step for step in log.steps if step.end_ns != NEVER_NS]
    decodes = [step for step in steps if not step.shape.prefill]
    prefills = [step for step in steps if step.shape.prefill]
    for name, found in (("decode", decodes), ("prefill", prefills)):
        if len(found) < LEAST_SAMPLES:
            raise ConfigError(
                f"{len(found)} {name} steps in the run of {settings.num_workers} workers",
                hint="Run a longer load",
            )
    decode = _line([_decode_terms(step) for step in decodes], _durations(decodes))
    ns_per_token = decode[2]
    attention_ns = [
        ns_per_token * (step.shape.context_tokens - step.shape.num_decodes * contexts[0])
        for step in prefills
    ]
    computing_ns = [
        took_ns - more_ns
        for took_ns, more_ns in zip(_durations(prefills), attention_ns, strict=True)
    ]
    prefill = _line([_prefill_terms(step) for step in prefills], computing_ns)
    return StepTimes(
        batches=tuple(batches),
        contexts=tuple(contexts),
        decode_ns=tuple(tuple(_at(decode, (1, b, b * c)) for c in contexts) for b in batches),
        chunks=tuple(chunks),
        histories=tuple(histories),
        prefill_ns=tuple(
            tuple(_at(prefill, _terms_of([(c, h)])) for h in histories) for c in chunks
        ),
        control_ns=0,
        source=source,
        transfers=fit_transfer_times(log, source) if log.transfers else None,
    )


def fit_transfer_times(log: DecisionLog, source: Source) -> TransferTimes:
    """Return transfer times from those of a run, as ``setup + bytes / rate``."""
    found = [
        ((1, log.transfer_bytes[i]), end_ns - start_ns)
        for i, (start_ns, end_ns) in log.transfers.items()
        if log.transfer_bytes[i]
    ]
    setup_ns, ns_per_byte = _line([terms for terms, _ in found], [time for _, time in found])
    rate = round(NS_PER_S / ns_per_byte) if ns_per_byte > 0 else 1 << 40
    return TransferTimes(
        setup_ns=round(setup_ns),
        bytes_per_s=max(1, rate),
        source=replace(source, text=f"{source.text}, KV transfers"),
    )


def _durations(steps: Sequence[RecordedStep]) -> list[int]:
    return [step.end_ns - step.start_ns for step in steps]


def _decode_terms(step: RecordedStep) -> tuple[int, int, int]:
    return 1, step.shape.num_decodes, step.shape.context_tokens


def _prefill_terms(step: RecordedStep) -> tuple[int, int, int]:
    return _terms_of(step.shape.prefill, step.shape.num_decodes)


def _terms_of(chunks: Sequence[tuple[int, int]], num_decodes: int = 0) -> tuple[int, int, int]:
    pairs = sum(causal_pairs(n, history, None) for n, history in chunks)
    return 1, sum(n for n, _ in chunks) + num_decodes, pairs


def _line(terms: Sequence[Sequence[int]], times_ns: Sequence[float]) -> list[float]:
    """Return the factors of terms that come closest, by least squares, none of them negative.

    The best of all subsets of terms whose own best factors are not negative; terms are few.
    """
    matrix, wanted = np.array(terms, np.float64), np.array(times_ns, np.float64)
    scale = matrix.max(axis=0)
    there = [i for i in range(matrix.shape[1]) if scale[i] > 0]
    best, least = [0.0] * matrix.shape[1], float(wanted @ wanted)
    for count in range(1, len(there) + 1):
        for used in map(list, combinations(there, count)):
            scaled = matrix[:, used] / scale[used]
            found: NDArray[np.float64] = np.linalg.lstsq(scaled, wanted, rcond=None)[0]
            rest = wanted - scaled @ found
            if found.min() >= 0 and rest @ rest < least:
                least = float(rest @ rest)
                factors = dict(zip(used, found / scale[used], strict=True))
                best = [float(factors.get(i, 0.0)) for i in range(matrix.shape[1])]
    return best


def _at(factors: Sequence[float], terms: Sequence[int]) -> int:
    return max(1, round(sum(f * term for f, term in zip(factors, terms, strict=True))))
