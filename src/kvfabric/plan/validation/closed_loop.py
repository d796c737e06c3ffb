"""A closed loop on 2 x H100 against the published table of NVIDIA NIM.

Source: docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance: Llama-3.3-70B fp8, TP2, 2 x H100,
prompts of 5,000 and answers of 500 tokens. TTFT explodes between 50 and 100 clients.

Nothing is fitted. The KV pool is what the sizing gives for 2 x H100 with fp8 weights and fp8 KV
cache, step times are the roofline with its defaults, the scheduler has the defaults of vLLM.
Llama-3.3-70B has the shape of Llama-3.1-70B. Assumed, because the page does not say: fp8 KV cache,
90 % of the memory, no pauses, and ``max_num_seqs`` 256, which 250 clients never reach.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from kvfabric.plan.load_state import Pressure, judge_load
from kvfabric.plan.steady_state import SteadyState, steady_state
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.plan.validation.looped_worker import LoopedWorker, run_users, users_workload

PUBLISHED: Final = {
    # clients: (mean TTFT ms, ITL ms, output tokens/s)
    1: (406.77, 18.58, 51.67),
    5: (546.7, 21.83, 218.5),
    25: (688.69, 38.75, 623.4),
    50: (834.51, 59.73, 814.4),
    100: (7996, 92.91, 917),
    150: (34794, 92.86, 921),
    200: (61680, 93.06, 921),
    250: (88605, 93.2, 920),
}
BEYOND: Final = (100, 150, 200, 250)
"""Clients beyond the knee."""
NUM_ROUNDS: Final = 8


@cache
def simulated(num_users: int, *, async_scheduling: bool = False) -> tuple[SteadyState, Pressure]:
    """Return the steady figures of so many clients, and the verdict on their load."""
    worker = LoopedWorker(
        model_name="llama-3.1-70b",
        gpu_name="h100-sxm-80gb",
        tp=2,
        weight_dtype="fp8",
        kv_dtype="fp8",
        num_prompt_tokens=5000,
        num_output_tokens=500,
        async_scheduling=async_scheduling,
    )
    workload = users_workload(worker, num_users, NUM_ROUNDS)
    records = run_users(worker, workload)
    load = judge_load(records, num_users=num_users)
    return steady_state(workload, records), load.pressure


def ttft_s(num_users: int, *, async_scheduling: bool = False) -> float:
    """Return the mean TTFT of so many clients."""
    return simulated(num_users, async_scheduling=async_scheduling)[0].ttft_ns / 1e9


def slope_s(ttfts_s: Mapping[int, float]) -> float:
    """Return the seconds that each client adds to TTFT, over the last three intervals."""
    return (ttfts_s[250] - ttfts_s[100]) / 150


def knees(ttfts_s: Mapping[int, float]) -> list[float]:
    """Return where the line beyond the knee would reach no TTFT at all."""
    slope = slope_s(ttfts_s)
    return [clients - ttft / slope for clients, ttft in ttfts_s.items()]


def _knee(ttfts_s: Mapping[int, float]) -> float:
    found = knees(ttfts_s)
    return sum(found) / len(found)


def _ttft_figures() -> list[Figure]:
    return [
        Figure(f"TTFT of {users} clients, ms", published[0], 1e3 * ttft_s(users))
        for users, published in PUBLISHED.items()
    ]


def _itl_figures() -> list[Figure]:
    return [
        Figure(f"ITL of {users} clients, ms", published[1], simulated(users)[0].itl_ns / 1e6)
        for users, published in PUBLISHED.items()
    ]


def _throughput_figures() -> list[Figure]:
    return [
        Figure(f"{users} clients, tokens/s", published[2], simulated(users)[0].output_tokens_per_s)
        for users, published in PUBLISHED.items()
    ]


def _knee_figures() -> list[Figure]:
    published = {users: PUBLISHED[users][0] / 1e3 for users in BEYOND}
    ours = {users: ttft_s(users) for users in BEYOND}
    return [
        Figure("knee, clients", _knee(published), _knee(ours)),
        Figure("beyond it, s per client", slope_s(published), slope_s(ours)),
    ]


_NIM: Final = "NVIDIA NIM 1.0.0, Llama-3.3-70B FP8 on 2 H100"

COMPARISONS: Final = (
    Comparison(
        part="closed-loop",
        what="knee of TTFT and its slope beyond, 1 to 250 clients",
        source=_NIM,
        role=Role.HELD_OUT,
        limit=Limit(0.035, 0.036),
        recompute=_knee_figures,
    ),
    Comparison(
        part="closed-loop",
        what="TTFT of 1 to 250 clients, worst at 5",
        source=_NIM,
        role=Role.HELD_OUT,
        limit=Limit(0.116, 0.315),
        recompute=_ttft_figures,
    ),
    Comparison(
        part="closed-loop",
        what="ITL of 1 to 250 clients",
        source=_NIM,
        role=Role.HELD_OUT,
        limit=Limit(0.09, 0.11),
        recompute=_itl_figures,
    ),
    Comparison(
        part="closed-loop",
        what="output tokens per second of 1 to 250 clients",
        source=_NIM,
        role=Role.HELD_OUT,
        limit=Limit(0.08, 0.125),
        recompute=_throughput_figures,
    ),
)
