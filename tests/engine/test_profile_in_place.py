"""Profiles of a cluster under load: what is fitted is what the steps of a log took.

Oracle: logs made from known lines.
"""

import importlib.util
from random import Random

import numpy as np
import pytest
from fake_clusters import settings_of

from kvfabric.engine.decision_log import NEVER_NS, DecisionLog, RecordedStep
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.profile_in_place import LoadShape, _line, fit_step_times, run_load
from kvfabric.engine.record_in_place import run_in_place
from kvfabric.errors import ConfigError
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape

SOURCE = Source(SourceKind.MEASURED, "made up")
_needs_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs numpy")


def fitted(log: DecisionLog) -> StepTimes:
    return fit_step_times(
        log,
        settings_of(num_decode=1),
        batches=(1, 4, 8),
        contexts=(32, 128, 512),
        chunks=(16, 128, 192, 256, 320),  # times grow with the square of a prompt
        histories=(0, 256),
        source=SOURCE,
    )


def log_of(noise: int = 0) -> DecisionLog:
    random, log = Random(4), DecisionLog()
    for i in range(400):
        start_ns = 1_000_000 * i
        off = random.randint(-noise, noise) if noise else 0
        if i % 2:
            tokens, history = random.randint(1, 300), random.choice([0, 100, 250])
            shape = StepShape(0, 0, ((tokens, history),))
            pairs = tokens * history + tokens * (tokens + 1) // 2
            end_ns = start_ns + 50_000 + 700 * tokens + 3 * pairs + off
        else:
            n = random.randint(1, 8)
            context = n * random.randint(10, 400)
            shape = StepShape(n, context)
            end_ns = start_ns + 90_000 + 1_000 * n + 20 * context + off
        log.steps.append(RecordedStep(i % 2, shape, start_ns, end_ns))
        size = random.randint(1, 50) * 1000
        log.transfers[i] = start_ns, start_ns + 4_000 + size // 2
        log.transfer_bytes[i] = size
    log.transfers[1000] = 5, 9  # carried nothing
    log.transfer_bytes[1000] = 0
    log.steps.append(RecordedStep(0, StepShape(1, 5), 0, NEVER_NS))  # its worker died
    return log


def test_known_lines_come_back() -> None:
    times = fitted(log_of())
    assert times.decode_ns[1][1] == pytest.approx(90_000 + 4_000 + 20 * 4 * 128, rel=1e-6)
    assert times.prefill_ns[1][1] == pytest.approx(
        50_000 + 700 * 128 + 3 * (128 * 256 + 64 * 129), rel=1e-6
    )
    assert times.control_ns == 0, "a log's steps have it in them"
    assert times.transfers is not None
    assert times.transfers.transfer_ns(10_000) == pytest.approx(9_000, rel=1e-3)
    model = MeasuredStepModel(times)
    assert model.mixed_step_ns(StepShape(3, 600)) == pytest.approx(105_000, rel=1e-3)


def test_steps_of_prompts_and_decodes_count_with_the_prompts() -> None:
    """A cluster without decode workers computes prompts in hardly any other steps."""
    log = log_of()
    for i, step in enumerate(log.steps[:400]):
        if step.shape.prefill and i % 20 != 1:
            ((tokens, history),) = step.shape.prefill
            shape = StepShape(4, 4 * 200, step.shape.prefill)
            pairs = tokens * history + tokens * (tokens + 1) // 2
            took_ns = 50_000 + 700 * (tokens + 4) + 3 * pairs + 20 * 4 * (200 - 32)
            log.steps[i] = RecordedStep(0, shape, step.start_ns, step.start_ns + took_ns)
    times = fitted(log)
    assert times.prefill_ns[1][1] == pytest.approx(
        50_000 + 700 * 128 + 3 * (128 * 256 + 64 * 129), rel=1e-6
    )
    model = MeasuredStepModel(times)
    for step in log.steps[:400]:
        if step.shape.num_decodes and step.shape.prefill and step.shape.prefill[0][0] > 100:
            took_ns = step.end_ns - step.start_ns
            assert model.mixed_step_ns(step.shape) == pytest.approx(took_ns, rel=0.06)


def test_means_are_kept_where_steps_scatter() -> None:
    log = log_of(noise=40_000)
    times = fitted(log)
    model = MeasuredStepModel(times)
    for is_prefill in (False, True):
        steps = [s for s in log.steps if s.end_ns < NEVER_NS]
        steps = [s for s in steps if bool(s.shape.prefill) is is_prefill]
        took = sum(step.end_ns - step.start_ns for step in steps)
        assert sum(model.mixed_step_ns(s.shape) for s in steps) == pytest.approx(took, rel=0.01)


def test_nothing_gets_faster_with_more_work() -> None:
    log = log_of()
    for i, step in enumerate(log.steps[:400]):  # the more, the sooner
        log.steps[i] = step._replace(end_ns=step.start_ns + 10**6 - step.shape.context_tokens)
    times = fitted(log)
    assert times.decode_ns[0] == tuple(sorted(times.decode_ns[0]))
    assert [row[0] for row in times.decode_ns] == sorted(row[0] for row in times.decode_ns)


def test_factors_are_the_best_that_are_not_negative() -> None:
    """Karush-Kuhn-Tucker: a factor above 0 has no slope left, one at 0 would only go below."""
    random, num_bounded = Random(7), 0
    for _ in range(2000):
        terms = []
        for _ in range(random.choice([4, 8, 12, 40])):
            n, history = random.randint(1, 400), random.choice([0, 0, random.randint(0, 400)])
            terms.append((1, n, n * history + n * (n + 1) // 2))
        times_ns = [random.randint(1, 10**6) for _ in terms]
        factors = np.array(_line(terms, times_ns))
        matrix = np.array(terms, np.float64)
        matrix /= matrix.max(axis=0)
        scaled = factors * np.array(terms).max(axis=0)
        slopes = matrix.T @ (matrix @ scaled - times_ns) / 1e6
        assert (factors >= 0).all()
        assert (slopes >= -1e-6).all(), "a larger factor would come closer"
        assert np.abs(slopes[factors > 0]).max(initial=0) < 1e-6
        num_bounded += int((factors == 0).sum() == 2)
    assert num_bounded > 20, "many cases have two terms at 0"


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 decode steps in the run of 2 workers"):
        fitted(DecisionLog())


def test_a_load_keeps_as_many_in_flight_as_it_says() -> None:
    running, most, started = 0, [], []

    def submit(request_id: int, num_prompt: int, num_output: int) -> None:
        nonlocal running
        running += 1
        most.append(running)
        started.append((request_id, num_prompt, num_output))

    def wait_ended(count: int) -> None:
        nonlocal running
        running = min(running, len(started) - count)

    shape = LoadShape((1, 3), 4, (5, 9), (2, 2))
    run_load(shape, submit, wait_ended)
    assert most[:4] == [1, 1, 1, 1]
    assert max(most[4:]) == 3
    assert running == 0
    assert [(5 <= p <= 9, o) for _, p, o in started] == [(True, 2)] * 8


@_needs_numpy
def test_a_real_cluster_gives_a_profile() -> None:
    settings = settings_of(num_decode=1, max_model_len=100)
    spec = ExecutorSpec(model=FAKE, num_blocks=settings.num_blocks, block_size=4)
    log = run_in_place(settings, spec, LoadShape((1, 3), 6, (10, 60), (2, 8)))
    times = fitted(log)
    assert min(map(min, times.decode_ns)) >= 1
    assert times.transfers is not None
    assert len(log.transfers) == 12
