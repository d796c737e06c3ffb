"""Prometheus metrics, named as vLLM names them, with ``kvfabric:`` for ``vllm:``.

Source of names and buckets: ``vllm/v1/metrics/loggers.py``; inter-token latencies below 10 ms have
buckets of their own here. What vLLM does not have is the hand-off as clients feel it
(``kv_transfer_*``); vLLM's NIXL connector counts the same from the side of the transport.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kvfabric.engine.executor_port import FinishReason
from kvfabric.engine.server.backend import BackendStats
from kvfabric.protocol.record import Outcome, RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class _Gauges(Collector):
    """Reads the state of the cluster when it is asked for."""

    def __init__(self, model: str, stats: Callable[[], BackendStats]) -> None:
        self._model, self._stats = model, stats

    def collect(self) -> Iterable[GaugeMetricFamily]:
        stats = self._stats()
        for name, text, value in (
            ("num_requests_running", "Requests in execution.", stats.num_running),
            ("num_requests_waiting", "Requests that wait for a worker.", stats.num_waiting),
            ("kv_cache_usage_perc", "Used share of the KV blocks, 0 to 1.", stats.kv_cache_usage),
            ("num_workers", "Workers that are alive.", stats.num_workers),
        ):
            family = GaugeMetricFamily(f"kvfabric:{name}", text, labels=["model_name"])
            family.add_metric([self._model], value)
            yield family


class ServerMetrics:
    """Everything ``/metrics`` shows; one object per server, none of it global."""

    def __init__(self, model: str, stats: Callable[[], BackendStats]) -> None:
        """Count for a model from zero on."""
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(model, stats))
        self._model = model
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests.")
        self._output_tokens = self._counter("generation_tokens", "Output tokens generated.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._restarts = self._counter("num_restarts", "Requests begun anew: their worker died.")
        self._transfer_bytes = self._counter("kv_transfer_bytes", "KV bytes handed off.")
        self._ended = Counter(
            "kvfabric:request_success",
            "Requests by how they ended: stop, length, abort, error.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival.", _TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", "Between two tokens.", _ITL)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean per request, after the first.", _ITL
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to end.", _REQUEST)
        self._queue = self._histogram("request_queue_time_seconds", "Before prefill.", _REQUEST)
        self._prefill = self._histogram("request_prefill_time_seconds", "In prefill.", _REQUEST)
        self._transfer = self._histogram(
            "kv_transfer_time_seconds", "From the end of prefill to the last byte of KV.", _TTFT
        )

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"kvfabric:{name}", text, ["model_name"], registry=self._registry)
        return counter.labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"kvfabric:{name}", text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return histogram.labels(self._model)

    def first_token(self, since_arrival_ns: int) -> None:
        """Count a first token."""
        self._output_tokens.inc()
        self._ttft.observe(since_arrival_ns / 1e9)

    def next_token(self, since_last_ns: int) -> None:
        """Count any other token."""
        self._output_tokens.inc()
        self._itl.observe(since_last_ns / 1e9)

    def ended(
        self, record: RequestRecord, finish: FinishReason | None, latency_ns: int, decode_ns: int
    ) -> None:
        """Count the end of a request.

        Args:
            record: what it went through.
            finish: why its output ended, None if it did not finish.
            latency_ns: from arrival to now.
            decode_ns: from its first token to its last.
        """
        self._ended.labels(self._model, _reason(record, finish)).inc()
        self._prompt_tokens.inc(record.num_prompt_tokens)
        self._preemptions.inc(record.num_preemptions)
        self._restarts.inc(record.num_restarts)
        self._transfer_bytes.inc(record.transfer_bytes)
        if record.prefill_start_ns is not None:
            self._queries.inc(record.num_prompt_tokens)
            self._hits.inc(record.num_cached_tokens)
            self._queue.observe((record.prefill_start_ns - record.arrival_ns) / 1e9)
        self._observe_hand_off(record)
        if finish is not None:
            self._e2e.observe(latency_ns / 1e9)
            if record.num_output_tokens > 1:
                self._tpot.observe(decode_ns / 1e9 / (record.num_output_tokens - 1))

    def _observe_hand_off(self, record: RequestRecord) -> None:
        start_ns, end_ns = record.prefill_start_ns, record.prefill_end_ns
        if start_ns is None or end_ns is None:
            return
        self._prefill.observe((end_ns - start_ns) / 1e9)
        if record.transferred_ns is not None and record.transfer_bytes:
            self._transfer.observe((record.transferred_ns - end_ns) / 1e9)

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self._registry)


def _reason(record: RequestRecord, finish: FinishReason | None) -> str:
    if finish is not None:
        return finish.value
    return "abort" if record.outcome is Outcome.ABORTED else "error"
