"""Sampling against distributions written out by hand, and its independence from the batch."""

import math

import pytest
import torch

from kvfabric.engine.executor_port import Sampling
from kvfabric.engine.sampler import Draw, kept_tokens, sample, uniform

torch.set_num_threads(1)
# Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 of tokens 3, 0, 4, 1, 2.
LOGITS = torch.tensor([-2.0, -4.0, -4.0, -1.0, -3.0]) * math.log(2)


def sampling(**options: float) -> Sampling:
    """Return temperature 1 with some options."""
    return Sampling(10, **{"temperature": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "ids", "probabilities"),
    [
        ({}, [3, 0, 4, 1, 2], [0.5, 0.25, 0.125, 0.0625, 0.0625]),
        ({"top_k": 2}, [3, 0], [2 / 3, 1 / 3]),
        ({"top_k": 99}, [3, 0, 4, 1, 2], [0.5, 0.25, 0.125, 0.0625, 0.0625]),
        ({"top_p": 0.5}, [3], [0.5]),
        ({"top_p": 0.51}, [3, 0], [0.5, 0.25]),
        ({"top_p": 1e-9}, [3], [0.5]),
        # Temperature 0.5 squares the odds: 64, 16, 4, 1, 1 of 86.
        ({"temperature": 0.5}, [3, 0, 4, 1, 2], [64 / 86, 16 / 86, 4 / 86, 1 / 86, 1 / 86]),
        # top_k first: of three tokens (4, 2, 1 of 7), the first two hold 6/7.
        ({"top_k": 3, "top_p": 0.8}, [3, 0], [4 / 7, 2 / 7]),
    ],
)
def test_kept_tokens(options: dict[str, float], ids: list[int], probabilities: list[float]) -> None:
    kept, mass = kept_tokens(LOGITS, sampling(**options))
    assert kept.tolist() == ids
    assert mass.tolist() == pytest.approx(probabilities, abs=1e-6)


def test_draws_follow_the_probabilities() -> None:
    count = 8000
    rows = LOGITS[None].expand(count, -1)
    drawn = sample(rows, [Draw(sampling(), 42, index) for index in range(count)])
    for token, share in ((3, 0.5), (0, 0.25), (4, 0.125), (1, 0.0625), (2, 0.0625)):
        deviation = math.sqrt(share * (1 - share) / count)
        assert abs(drawn.count(token) / count - share) < 4 * deviation


def test_a_draw_depends_on_seed_and_index_only() -> None:
    alone = sample(LOGITS[None], [Draw(sampling(), 7, 3)])[0]
    among = sample(
        LOGITS[None].expand(3, -1),
        [Draw(Sampling(10), 7, 0), Draw(sampling(), 7, 3), Draw(sampling(), 8, 3)],
    )
    assert among[1] == alone
    assert among[0] == 3
    assert len({uniform(seed, index) for seed in range(20) for index in range(20)}) == 400
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert sample(torch.tensor([[1.0, 5.0, 5.0]]), [Draw(Sampling(10), 0, 0)]) == [1]
