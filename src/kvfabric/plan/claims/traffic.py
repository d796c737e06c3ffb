"""Coding sessions in a steady state: long shared contexts, short new parts, some cold prompts.

Every live session has a context that a prefill worker has cached. Its first request comes before
the measured ones and fills the caches. All arrivals are fixed beforehand, so that two fabrics get
the same load to the nanosecond: were a turn to wait for the answer before it, one microsecond on
the wire would lead to other queues and other cache hits, and that noise is larger than most gains.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist

import numpy as np

from kvfabric.plan.claims.settings import STICKY, RunSettings
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S, ceil_div

BLOCK_TOKENS = 512
CHUNK_TOKENS = 8_192
_CONTEXT_SIGMA, _CONTEXT_RANGE = 0.5, (2_000, 128_000)
_NEW_SIGMA, _NEW_RANGE = 0.8, (64, 32_000)
_OUTPUT_SIGMA, _OUTPUT_RANGE = 0.8, (8, 1_000)
_SETTLE_NS = NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingLoad:
    """A load and how it was made.

    Attributes:
        workload: of the fillers first, then of the measured requests.
        num_fillers: requests that fill the caches; ids below are theirs.
        cold_ids: measured requests of which nothing is cached.
        rate_per_s: of measured requests; 0 in a closed loop.
    """

    workload: Workload
    num_fillers: int
    cold_ids: frozenset[int]
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class _Prompt:
    history: int  # tokens of the context, in whole blocks
    new: int
    session: int  # -1: cold
    output: int


def coding_load(settings: RunSettings, model: StepTimeModel) -> CodingLoad:
    """Return the load of a run; the same seed always gives the same one.

    Args:
        settings: of the run; those of the fabric do not matter.
        model: step times of a prefill worker, which turn a share of its time into a rate.
    """
    streams = [
        np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(31, idx)))
        for idx in range(2)
    ]
    contexts = _contexts(settings)
    prompts = _prompts(settings, contexts, streams[0])
    fillers, start_ns = _fillers(settings, contexts, model)
    gap_ns = 0.0
    if settings.users is None:
        work_ns = _mean_ns([(_computed(p), p.history if p.session >= 0 else 0) for p in prompts],
                           model)  # fmt: skip
        gap_ns = work_ns / settings.num_prefill / settings.load
    arrivals = [start_ns + at for at in _arrivals(settings, gap_ns, streams[1])]
    num_fillers = len(fillers)
    requests = (*fillers, *_measured(settings, contexts, prompts, arrivals, num_fillers))
    return CodingLoad(
        workload=Workload(
            name=f"coding sessions, seed {settings.seed}",
            requests=requests,
            hash_block_tokens=BLOCK_TOKENS,
            num_rows=len(requests),
            num_users=settings.users,
        ),
        num_fillers=num_fillers,
        cold_ids=frozenset(num_fillers + i for i, p in enumerate(prompts) if p.session < 0),
        rate_per_s=NS_PER_S / gap_ns if gap_ns else 0.0,
    )


def _contexts(settings: RunSettings) -> list[int]:
    """Return the tokens of each context, in whole blocks: quantiles of a lognormal, no sample."""
    count = settings.num_contexts
    normal = NormalDist()
    drawn = [
        settings.context_tokens * math.exp(_CONTEXT_SIGMA * normal.inv_cdf((idx + 0.5) / count))
        for idx in range(count)
    ]
    low, high = _CONTEXT_RANGE
    sizes = [max(1, round(min(max(size, low), high)) // BLOCK_TOKENS) for size in drawn]
    copies = settings.num_prefill if settings.contexts == STICKY else 1
    return [size * BLOCK_TOKENS for size in sizes] * copies


def _prompts(settings: RunSettings, contexts: list[int], rng: np.random.Generator) -> list[_Prompt]:
    """Return what each measured request asks for, without its instant."""
    count = settings.num_requests
    sessions = rng.integers(0, len(contexts), count).tolist()
    is_cold = (rng.random(count) < settings.cold_share).tolist()
    spread = np.exp(rng.standard_normal(count) * _NEW_SIGMA - _NEW_SIGMA**2 / 2).tolist()
    outputs = _lognormal(rng, settings.output_tokens, _OUTPUT_SIGMA, _OUTPUT_RANGE, count)
    per_context = (1 - settings.hit_rate) / settings.hit_rate
    mean_context = sum(contexts) / len(contexts)
    low, high = _NEW_RANGE
    return [
        _Prompt(
            history=contexts[session],
            new=min(max(round(mean_context * per_context * factor), low), high),
            session=-1 if cold else session,
            output=output,
        )
        for session, cold, factor, output in zip(sessions, is_cold, spread, outputs, strict=True)
    ]


def _lognormal(
    rng: np.random.Generator, median: int, sigma: float, limits: tuple[int, int], count: int
) -> list[int]:
    drawn = median * np.exp(sigma * rng.standard_normal(count))
    return [round(value) for value in np.clip(drawn, *limits).tolist()]


def _computed(prompt: _Prompt) -> int:
    return prompt.new if prompt.session >= 0 else prompt.history + prompt.new


def _mean_ns(sizes: list[tuple[int, int]], model: StepTimeModel) -> float:
    """Return the mean time of prompts of (new, cached) tokens alone on a worker."""
    return sum(_prompt_ns(new, history, model) for new, history in sizes) / len(sizes)


def _prompt_ns(new: int, history: int, model: StepTimeModel) -> int:
    total = 0
    for first in range(0, new, CHUNK_TOKENS):
        size = min(CHUNK_TOKENS, new - first)
        total += model.mixed_step_ns(StepShape(0, 0, ((size, history + first),)))
    return total


def _arrivals(settings: RunSettings, gap_ns: float, rng: np.random.Generator) -> list[int]:
    """Return the instants of the measured requests; of a closed loop, those of its users."""
    if settings.users is not None:
        return [int(share * NS_PER_S) for share in rng.random(settings.users)]
    shape = settings.burst_cv**-2
    gaps = rng.standard_gamma(shape, settings.num_requests) / shape
    return [int(instant) for instant in np.cumsum(np.rint(gap_ns * gaps))]


def _fillers(
    settings: RunSettings, contexts: list[int], model: StepTimeModel
) -> tuple[list[RequestSpec], int]:
    """Return the requests that fill the caches, and when all is quiet again.

    One wave after the other, each with as many equal prompts as there are workers, all at once: the
    least-loaded worker is then each of them in turn.
    """
    fillers: list[RequestSpec] = []
    firsts = _first_ids(contexts)
    width, at_ns = settings.num_prefill, 0
    is_sticky = settings.contexts == STICKY
    order = sorted(range(len(contexts)), key=lambda session: (contexts[session], session))
    waves = (
        [order[first : first + width] for first in range(0, len(order), width)]
        if is_sticky
        else [[session] * width for session in order]
    )
    for wave in waves:
        for session in wave:
            size = contexts[session]
            first = firsts[session]
            fillers.append(
                RequestSpec(
                    request_id=len(fillers),
                    arrival_ns=at_ns,
                    num_prompt_tokens=size,
                    num_output_tokens=1,
                    block_hashes=tuple(range(first, first + size // BLOCK_TOKENS)),
                )
            )
        at_ns += _prompt_ns(contexts[wave[-1]], 0, model) * 3 // 2 + _SETTLE_NS
    return fillers, at_ns


def _first_ids(contexts: list[int]) -> list[int]:
    """Return the first block id of each context, and the first that none has."""
    return list(accumulate((size // BLOCK_TOKENS for size in contexts), initial=0))


def _measured(
    settings: RunSettings,
    contexts: list[int],
    prompts: list[_Prompt],
    arrivals: list[int],
    first_id: int,
) -> Iterator[RequestSpec]:
    firsts = _first_ids(contexts)
    fresh = firsts[-1]
    users, order = settings.users, sorted(arrivals)
    for idx, prompt in enumerate(prompts):
        ids: list[int] = []
        if prompt.session >= 0:
            first = firsts[prompt.session]
            ids = list(range(first, first + prompt.history // BLOCK_TOKENS))
        num_fresh = ceil_div(prompt.history + prompt.new, BLOCK_TOKENS) - len(ids)
        ids.extend(range(fresh, fresh + num_fresh))
        fresh += num_fresh
        follows = users is not None and idx >= users
        yield RequestSpec(
            request_id=first_id + idx,
            arrival_ns=order[idx % len(order)],
            num_prompt_tokens=prompt.history + prompt.new,
            num_output_tokens=prompt.output,
            block_hashes=tuple(ids),
            after_request_id=first_id + idx - (users or 0) if follows else None,
        )
