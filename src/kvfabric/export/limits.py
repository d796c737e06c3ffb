"""What a simulated run leaves out, and how far its step times are known to be off."""

from collections.abc import Iterator

from kvfabric.perf.profile import ProfileModel
from kvfabric.perf.step_times import MeasuredStepModel
from kvfabric.plan.request import NetworkRequest, PlanRequest
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.serving.coordinator_config import HandoffMode

_PROFILE_ERROR = (
    "on two recorded vLLM 0.19 runs of Llama-3.1-8B, nothing fitted: RTX 4090 +1 to +2.5 % TTFT,"
    " +0.3 % TPOT; RTX PRO 6000 -12 to -5 % TTFT, -2.7 % TPOT (tests/oracle/test_vllm_runs.py)"
)
_ROOFLINE_ERROR = (
    "dense models on H100 and H200 -4 to +13 %, on other GPUs -23 to +8 %; on H100 and H200 Qwen3"
    " with experts -19 to +16 %, gpt-oss (mxfp4) -28 to +17 %, latent attention -41 to +11 %;"
    " Qwen3-235B on B200 -33 to -3 % (tests/oracle/test_step_times.py)"
)


def stated_error(model: StepTimeModel) -> str:
    """Return how far the step times of a model were from measured or published ones."""
    if isinstance(model, MeasuredStepModel):
        return model.known_error
    return _PROFILE_ERROR if isinstance(model, ProfileModel) else _ROOFLINE_ERROR


def not_modelled(request: PlanRequest) -> Iterator[str]:
    """Yield what a run of this fleet leaves out."""
    if request.moves_as_measured:
        yield "transfers that slow each other down"
    elif request.workers.num_decode:
        yield flows_not_modelled(request.network)
        yield "what transports lose: a lone hand-off fills its NICs"
        yield "other traffic on the fabric, and its latency of microseconds"
    yield from not_asked_for(request)
    yield "the front end of the engine: tokenizer, HTTP, detokenizer"
    yield "speculative decoding, LoRA"
    if request.has_pool:
        yield "the time of writes to host memory and storage"
    yield not_failing(request)


def flows_not_modelled(network: NetworkRequest) -> str:
    """Return what the flow engine leaves out."""
    if not network.has_pauses:
        return (
            "PFC pauses, queues and packets: max-min fair flows stand for good end-to-end rate"
            " control"
        )
    return (
        "end-to-end rate control (ECN, DCQCN), which would shorten queues, and packets: flows stop"
        " for PFC pauses only"
    )


def not_asked_for(request: PlanRequest) -> Iterator[str]:
    """Yield what the scenario could ask for and did not."""
    if request.workers.num_decode and request.handoff.mode is HandoffMode.WHOLE_PROMPT:
        yield "layer-wise streaming of the KV cache (handoff.mode layer_wise)"
    if not request.workers.async_scheduling:
        yield "asynchronous scheduling (workers.async_scheduling)"


def not_failing(request: PlanRequest) -> str:
    """Return what never fails in a run of this fleet."""
    workers = "" if request.failures else "workers, "
    during = " during the run" if any(kind.failures for kind in request.network.fabrics) else ""
    return f"failures of {workers}links and switches{during}"
