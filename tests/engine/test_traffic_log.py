"""What a server keeps of its traffic: the newest steps and transfers, nothing of its requests."""

from pathlib import Path

import pytest
from fake_clusters import Outputs, request, settings_of

from kvfabric.app.record_traffic import TrafficRecorder
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.engine.traffic_log import TrafficLog, step_times_of
from kvfabric.errors import ConfigError
from kvfabric.perf.step_times import MeasuredStepModel
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepPlan, StepShape

SOURCE = Source(SourceKind.MEASURED, "made up")


def plan(num_decodes: int, context_tokens: int) -> StepPlan:
    return StepPlan(num_decodes=num_decodes, context_tokens=context_tokens, prefill=())


def test_only_the_newest_are_kept() -> None:
    log = TrafficLog(most_kept=10)
    for i in range(57):
        log.transfers[i], log.transfer_bytes[i] = (i, i + 1), 5
        log.add_step(0, plan(1, i), i, i + 1)
    assert 10 <= len(log.steps) <= 20
    assert [step.start_ns for step in log.steps] == list(range(57 - len(log.steps), 57))
    assert (
        list(log.transfers) == list(log.transfer_bytes) == list(range(57 - len(log.transfers), 57))
    )
    assert 10 <= len(log.transfers) <= 20


def test_a_cluster_that_serves_leaves_steps_and_no_requests() -> None:
    log, outputs = TrafficLog(), Outputs()
    settings = settings_of(num_prefill=1, num_decode=1)
    spec = ExecutorSpec(
        model=FAKE, num_blocks=settings.num_blocks, block_size=4, fake_step_ns=2_000_000
    )
    asked = [request(i, range(7 * i, 7 * i + 20 + 3 * i), 8) for i in range(12)]
    with ProcessCluster(settings, spec, outputs, log=log) as cluster:
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
    assert len(log.transfers) == len(log.transfer_bytes) == len(asked)
    for kept in (log.lines, log.arrivals, log.records, log.all_hashes, log.num_produced):
        assert not kept
    # it sleeps 2 ms in each, whatever is in it; how much longer one takes is up to the machine
    assert all(step.end_ns - step.start_ns >= 2_000_000 for step in log.steps)
    log.steps[:] = [step._replace(end_ns=step.start_ns + 2_000_000) for step in log.steps]
    times = step_times_of(log, settings, SOURCE)
    assert times.transfers is not None
    assert times.source == SOURCE
    most = max(step.shape.num_decodes for step in log.steps)
    assert times.batches == (1, max(2, most))
    model = MeasuredStepModel(times)
    for step in log.steps:
        assert model.mixed_step_ns(step.shape) == pytest.approx(2_000_000, rel=1e-3)
    assert model.mixed_step_ns(StepShape(1, 20)) == pytest.approx(2_000_000, rel=1e-3)


def test_too_little_traffic_is_told() -> None:
    with pytest.raises(ConfigError, match="0 decode steps"):
        step_times_of(TrafficLog(), settings_of(), SOURCE)


def test_too_little_traffic_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("from before")
    for path in (new, old):
        said = TrafficRecorder(path).write(settings_of(), "fake")
        assert said.startswith("no step times were written: 0 decode steps")
    assert not new.exists()
    assert old.read_text() == "from before"
