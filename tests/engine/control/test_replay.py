"""Replay parity: a run in real time, replayed by the simulation with its measured durations.

The simulation is another driver of the same control. It must come to the same decisions at the same
ns: the same digest of everything that happened, and the same records.
"""

import time  # noqa: TID251 - runs in real time
from random import Random
from typing import Any

import pytest
from fake_clusters import Outputs, fake_executor, local_cluster, request, settings_of
from replays import replay

from kvfabric.engine.decision_log import DecisionLog
from kvfabric.protocol.record import Outcome
from kvfabric.serving.coordinator_config import HandoffMode, Reservation
from kvfabric.serving.router import RoutingPolicy

SHAPES: dict[str, dict[str, Any]] = {
    "one worker": {},
    "few blocks": {"num_blocks": 31},
    "least loaded": {"num_prefill": 3, "policy": RoutingPolicy.LEAST_LOADED},
    "2 + 2": {"num_prefill": 2, "num_decode": 2},
    "decode first": {"num_decode": 1, "reservation": Reservation.DECODE_FIRST},
    "streamed": {"num_decode": 2, "handoff": HandoffMode.LAYER_WISE, "num_blocks": 40},
    "layer groups": {
        "num_prefill": 2,
        "num_decode": 2,
        "handoff": HandoffMode.LAYER_WISE,
        "num_layer_groups": 2,
    },
}


@pytest.mark.parametrize("cancels", [False, True], ids=["", "cancelled"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_simulation_takes_the_decisions_of_the_run(
    shape: dict[str, Any], *, cancels: bool
) -> None:
    settings, outputs, random = settings_of(**shape), Outputs(), Random(5)
    log = DecisionLog()
    executors = [
        fake_executor(settings, lambda step: 200_000 + 20_000 * len(step.scheduled))
        for _ in range(settings.num_workers)
    ]
    heads = [[random.randrange(1000) for _ in range(24)] for _ in range(3)]
    with local_cluster(settings, outputs, executors, log=log) as cluster:
        for i in range(30):
            head = random.choice(heads)
            prompt = head + [random.randrange(1000) for _ in range(random.randint(1, 50))]
            stop = tuple(random.randrange(1009) for _ in range(60))
            cluster.loop.submit(request(i, prompt, random.randint(1, 40), stop_token_ids=stop))
            if cancels and i % 3 == 2:
                cluster.loop.cancel(random.randrange(i))
            time.sleep(random.choice([0, 0, 0.002]))
        outputs.wait_ended(30)
    result = replay(settings, log, executors[0].block_bytes)
    assert result.log_digest == log.digest
    of_run = {r.request_id: r for r in log.records if r.outcome is Outcome.FINISHED}
    of_replay = {r.request_id: r for r in result.records if r.outcome is Outcome.FINISHED}
    assert of_run == of_replay
    assert len(of_run) >= 15
