"""Runs the load of ``profile_in_place`` through a cluster of worker processes."""

from queue import Empty, SimpleQueue

from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.engine.executor_spec import ExecutorSpec
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.engine.profile_in_place import LoadShape, run_load
from kvfabric.protocol.record import RequestRecord

_TOKEN_IDS = 199  # any small ids: time does not depend on them


class _Ends:
    """Counts the requests that have ended."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[RequestRecord] = SimpleQueue()
        self.count = 0

    def on_token(self, request_id: int, token_id: int) -> None:
        """Let a token go."""

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        del finish
        self.queue.put(record)


def run_in_place(
    settings: ClusterSettings, executor: ExecutorSpec, shape: LoadShape
) -> DecisionLog:
    """Return the log of a load, without that of the requests that warmed the workers up.

    Raises:
        WorkerStartError: a worker could not start, with its reason.
    """
    log, ends = DecisionLog(), _Ends()
    with ProcessCluster(settings, executor, ends, log=log) as cluster:

        def submit(request_id: int, num_prompt: int, num_output: int) -> None:
            prompt = tuple((i * (request_id + 3)) % _TOKEN_IDS for i in range(num_prompt))
            sampling = Sampling(num_output, ignore_eos=True)
            cluster.loop.submit(GenerateRequest(request_id, prompt, sampling))

        def wait_ended(count: int) -> None:
            while ends.count < count:
                try:
                    ends.queue.get(timeout=0.5)
                    ends.count += 1
                except Empty:
                    cluster.raise_if_failed()

        warm_up = LoadShape((settings.num_workers,), 2 * settings.num_workers, (64, 64), (4, 4))
        run_load(warm_up, lambda i, *lengths: submit(1_000_000 + i, *lengths), wait_ended)
        ends.count = 0
        log.steps.clear()
        log.transfers.clear()
        run_load(shape, submit, wait_ended)
    return log
