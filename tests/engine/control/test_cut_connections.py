"""A connection between two worker processes that is cut, or stalls, in the middle of a transfer.

The control hears of it: an error for that request or a new start of its prompt, as it is set to; no
block leaks on either side, and the next transfer takes a new connection.
"""

from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from fake_clusters import Outputs, let_time_pass, request, settings_of

from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.fake_executor import reference_tokens
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.protocol.record import Outcome
from kvfabric.serving.coordinator_config import HandoffMode, OnExpiry

HANDOFF_NS = 30_000_000_000
LAYER_WISE: dict[str, Any] = {"handoff": HandoffMode.LAYER_WISE, "num_layer_groups": 2}


@pytest.mark.parametrize("cuts", [True, False], ids=["cut", "stalled"])
@pytest.mark.parametrize("on_expiry", OnExpiry)
@pytest.mark.parametrize("settings", [{}, LAYER_WISE], ids=["whole prompt", "layer groups"])
def test_one_request_notices_and_nothing_leaks(
    settings: dict[str, Any], on_expiry: OnExpiry, *, cuts: bool, tmp_path: Path
) -> None:
    of_cluster = settings_of(
        num_decode=1,
        on_expiry=on_expiry,
        handoff_deadline_ns=HANDOFF_NS,
        **settings,
    )
    executor = ExecutorSpec(model=FAKE, num_blocks=of_cluster.num_blocks, block_size=4)
    outputs = Outputs()
    asked = [request(i, range(100 * i, 100 * i + 100), 6) for i in range(4)]
    with ProcessCluster(of_cluster, executor, outputs, check=True) as cluster:
        decode = cluster.loop.driver.workers[1]
        # a greeting has some 300 bytes, and 25 blocks of 64 bytes follow
        proxy = CuttingProxy(tmp_path, decode.address, after_bytes=1000, cuts=cuts)
        decode.address = proxy.address
        cluster.loop.submit(asked[0])
        outputs.wait(proxy.has_harmed.is_set)
        if not cuts:
            outputs.wait(lambda: bool(cluster.loop._coordinator._book._leases))
            let_time_pass(cluster.loop, HANDOFF_NS - 200_000_000)
        outputs.wait_ended(1)
        if not cuts:
            cluster.loop.driver.workers[1].address = decode.address = str(proxy._target)
        for one in asked[1:]:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
        outputs.wait(lambda: cluster.loop.driver.is_quiet)
        assert not any(worker.is_lost for worker in cluster.loop.driver.workers)
        proxy.close()
    outcome = outputs.ends[0][0].outcome
    assert outcome is (Outcome.ABORTED if on_expiry is OnExpiry.FAIL else Outcome.FINISHED)
    for one in asked:
        expected = reference_tokens(one.prompt_ids, one.sampling)
        if outputs.ends[one.request_id][0].outcome is Outcome.FINISHED:
            assert outputs.tokens[one.request_id] == expected
        else:
            assert one is asked[0]
            assert one.request_id not in outputs.tokens
    if cuts:
        assert any("transfer" in text for text in cluster.loop.failures)
