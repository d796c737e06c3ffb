"""A solve that converged ends in a stationary state, by the plain conditions of the model."""

import numpy as np
import pytest

from kvfabric.fabric.engines.pfc import PfcEngine
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_reference import stationarity_gap

BYTE_PER_NS = 8_000_000_000


def gap(engine: PfcEngine, paths: list[list[int]]) -> float:
    """Return how far the engine's present state is from a stationary one."""
    tables = engine._flows.tables
    return stationarity_gap(
        paths,
        [engine.rate_bps(flow) / BYTE_PER_NS for flow in range(len(paths))],
        dict(enumerate(tables.queues["price"].tolist())),
        tables.channels["capacity"].tolist(),
        tables.queues["loop_price"].tolist(),
    )


def draw_paths(rng: np.random.Generator, num_flows: int) -> list[list[int]]:
    """Return paths over a two-tier tree: 4 leaves of 4 hosts, 2 spines.

    Channels: 16 hosts up, 16 down, then per leaf and spine one up and one down.
    """
    paths = []
    for _ in range(num_flows):
        src, dst = rng.choice(16, 2, replace=False).tolist()
        spine, up, down = int(rng.integers(2)), src // 4, dst // 4
        middle = [] if up == down else [32 + 2 * up + spine, 40 + 2 * down + spine]
        paths.append([src, *middle, 16 + dst])
    return paths


@pytest.mark.parametrize("loop_delay_ns", [0, 2100])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_converged_solves_are_stationary(loop_delay_ns: int, *, is_mixed: bool) -> None:
    num_converged = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        capacity = np.full(48, 50.0)
        if is_mixed:
            capacity = rng.choice([12.5, 25.0, 50.0], 48)
        paths = draw_paths(rng, int(rng.integers(2, 24)))
        engine = PfcEngine(
            capacity * BYTE_PER_NS,
            PfcParams(loop_delay_ns=loop_delay_ns),
            cut=1e-7,
            max_sweeps=3000,
        )
        engine.start_flows(0, paths, [1_000_000] * len(paths))
        engine.check_invariants()
        if engine.num_unconverged == 0:
            num_converged += 1
            assert gap(engine, paths) < 1e-3
    assert num_converged > 50


def test_the_check_notices_a_rate_or_a_price_that_is_off() -> None:
    """Two NICs into one channel of 10: 5 each at a price of 1 / 5 without a loop."""
    paths, capacity, no_loop = [[0, 2], [1, 2]], [10.0] * 3, [0.0] * 3
    prices = {0: 0.0, 1: 0.0, 2: 0.2}
    assert stationarity_gap(paths, [5, 5], prices, capacity, no_loop) == 0
    assert stationarity_gap(paths, [5, 6], prices, capacity, no_loop) == pytest.approx(0.2)
    assert stationarity_gap(paths, [4, 4], prices | {2: 0.25}, capacity, no_loop) > 0.1
    assert stationarity_gap(paths, [5, 5], prices | {2: 0.1}, capacity, no_loop) > 0.1
