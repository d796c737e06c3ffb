"""A run under the keys of ``vllm bench serve --save-result``, for tools that read those.

Source of the keys: results of July 2026 (vLLM 0.2x). Percentiles are nearest rank; ITL as in
``plan.step_log``. ``std_*`` and the lists of single requests are left out.
"""

from kvfabric.metrics.percentiles import LatencyDistribution
from kvfabric.plan.simulate import SimulatedRun
from kvfabric.units import NS_PER_S


def bench_serve_dict(run: SimulatedRun) -> dict[str, object]:
    """Return the figures of a run as clients see them, times in ms, ``duration`` in s."""
    summary = run.summary
    rates, counts = summary.rates, summary.counts
    return {
        "backend": "kvfabric",
        "endpoint_type": "simulated",
        "label": run.result.name,
        "model_id": run.request.model_name,
        "num_prompts": counts.arrived,
        "max_concurrency": run.request.workload.num_users,
        "duration": summary.window_ns / NS_PER_S,
        "completed": counts.finished,
        "failed": counts.arrived - counts.finished,
        "total_input_tokens": summary.num_prompt_tokens,
        "total_output_tokens": summary.num_output_tokens,
        "request_throughput": rates.requests_per_s,
        "request_goodput": rates.goodput_per_s,
        "output_throughput": rates.output_tokens_per_s,
        "total_token_throughput": rates.total_tokens_per_s,
        **_latencies("ttft", summary.ttft),
        **_latencies("tpot", summary.tpot),
        **_latencies("itl", run.itl),
        **_latencies("e2el", summary.e2e),
    }


def _latencies(name: str, latencies: LatencyDistribution) -> dict[str, float | None]:
    values = {
        "mean": latencies.mean_ns,
        "median": latencies.p50_ns,
        "p90": latencies.p90_ns,
        "p99": latencies.p99_ns,
    }
    return {f"{key}_{name}_ms": None if ns is None else ns / 1e6 for key, ns in values.items()}
