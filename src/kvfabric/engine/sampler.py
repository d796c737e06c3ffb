"""Choosing the next token from logits: greedy, or drawn after temperature, top-k and top-p.

A draw depends on the request's seed and on the output token's index only, not on the batch, on
preemptions or on the worker that continues the request: the random number is computed from the two
by Philox, a counter-based generator (Salmon et al., SC11), so there is no state to move along.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvfabric.engine.executor_port import Sampling


class Draw(NamedTuple):
    """How one row of logits is sampled; output tokens of a request are counted from 0."""

    sampling: Sampling
    seed: int
    output_index: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Return one token id per row of fp32 logits ``[rows, vocab]``."""
    ids: list[int] = logits.argmax(-1).tolist()
    for row, draw in enumerate(draws):
        if draw.sampling.temperature > 0:
            ids[row] = _drawn(logits[row], draw)
    return ids


def uniform(seed: int, index: int) -> float:
    """Return the random number in [0, 1) of one output token."""
    philox = np.random.Philox(key=seed % 2**64, counter=index)
    return float(np.random.Generator(philox).random())


def _drawn(logits: Tensor, draw: Draw) -> int:
    ids, probabilities = kept_tokens(logits, draw.sampling)
    cumulative = probabilities.cumsum(0)
    point = uniform(draw.seed, draw.output_index) * float(cumulative[-1])
    place = int(torch.searchsorted(cumulative, point, right=True))
    return int(ids[min(place, len(ids) - 1)])


def kept_tokens(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the ids that may be drawn, most likely first, and their fp64 probabilities.

    Temperature first, then ``top_k`` tokens, then the fewest of them whose mass reaches ``top_p``;
    equal logits in order of id. The probabilities sum to the mass kept.
    """
    ordered, ids = logits.sort(descending=True, stable=True)
    if sampling.top_k:
        ordered, ids = ordered[: sampling.top_k], ids[: sampling.top_k]
    probabilities = (ordered.to(torch.float64) / sampling.temperature).softmax(0)
    before = probabilities.cumsum(0) - probabilities
    count = max(1, int((before < sampling.top_p).sum()))
    return ids[:count], probabilities[:count]
