"""One run of the sweep: from its settings to its figures."""

from collections.abc import Callable, Sequence

from kvfabric.catalog.gpus import gpu
from kvfabric.fabric.networks.network import BITS_PER_BYTE, LinkLoad
from kvfabric.kvcache.resharding import LatentSenders
from kvfabric.metrics.latency import Slo
from kvfabric.metrics.summary import RunSummary, summarize
from kvfabric.plan.claims.figures import (
    RunFigures,
    busiest,
    growth_of,
    middle_rates,
    percentile,
    tail_of,
    transfer_window_ns,
    wire_share,
    wires_ns,
)
from kvfabric.plan.claims.settings import (
    ROFT,
    ZCUBE,
    ZCUBE_SQUARE,
    RunSettings,
    geometry_of,
)
from kvfabric.plan.claims.traffic import BLOCK_TOKENS, CHUNK_TOKENS, CodingLoad, coding_load
from kvfabric.plan.compare import Design, DesignRun, build_fabric, design_on, design_run
from kvfabric.plan.fleet import build_cluster, build_fleet
from kvfabric.plan.load_state import judge_load
from kvfabric.plan.pool import PoolRequest, TierRequest
from kvfabric.plan.request import (
    FabricChoice,
    HandoffPolicy,
    NetworkRequest,
    Placement,
    PlanRequest,
    WorkerRequest,
)
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import Workload
from kvfabric.serving.coordinator_config import HandoffMode
from kvfabric.serving.decode_choice import DecodePolicy
from kvfabric.serving.router import RoutingPolicy
from kvfabric.units import NS_PER_S

SWITCH_BPS = 51_200 * 10**9
MOST_PORTS = 128  # of a RoFT switch: as many as at 400 Gbit/s; slower NICs leave capacity unused
HOST_BYTES, HOST_BYTES_PER_S = 10**12, 50 * 10**9  # assumed: per server
_ALL_CHANNELS = 1 << 30
_GIGA = 10**9
_NOTHING = Workload(name="none yet", requests=(), hash_block_tokens=BLOCK_TOKENS, num_rows=0)


def run_settings(settings: RunSettings, tell: Callable[[int], None]) -> RunFigures:
    """Return the figures of one run.

    Args:
        settings: of the run.
        tell: called with the number of requests that have ended.

    Raises:
        ConfigError: the fleet or the fabric cannot be built.
    """
    request, load = request_of(settings)
    fleet = build_fleet(request)
    design = design_on(
        request, build_fabric(request, request.network.fabrics[0]), settings.balancing
    )
    assert design.fabric is not None
    cluster = build_cluster(
        request, fleet, design.network, is_disaggregated=True, topology=design.fabric.topology
    )
    carried_before: dict[str, int] = {}

    def observe(num_ended: int) -> None:
        if num_ended >= load.num_fillers and not carried_before:
            carried_before[""] = 0  # so that it is done once, whatever was carried
            carried_before.update(_carried(design))
        tell(num_ended)

    result = cluster.simulation.run(observe)
    run = design_run(request, design, cluster, result)
    measured = result.records[load.num_fillers :]
    summary = summarize(measured, settings.num_gpus)
    links = _links_since(design, carried_before, transfer_window_ns(measured))
    return _figures(settings, load, measured, summary, links, run)


def request_of(settings: RunSettings) -> tuple[PlanRequest, CodingLoad]:
    """Return the plan of a run, and its load."""
    request = _plan(settings, _NOTHING)
    load = coding_load(settings, build_fleet(request).prefill.model)
    return _plan(settings, load.workload), load


def _plan(settings: RunSettings, workload: Workload) -> PlanRequest:
    return PlanRequest(
        name="claims",
        model_name=settings.model,
        geometry=geometry_of(settings.model),
        gpu=gpu(settings.gpu),
        num_users=1,
        num_context_tokens=settings.context_tokens,
        workers=WorkerRequest(
            num_prefill=settings.num_prefill,
            num_decode=settings.num_decode,
            tp=8,
            prefill_cp=settings.prefill_cp,
            weight_dtype=settings.weight_dtype,
            block_size=BLOCK_TOKENS,
            max_num_batched_tokens=CHUNK_TOKENS,
        ),
        network=NetworkRequest(
            nic_rate_bps=settings.nic_gbps * _GIGA,
            fabrics=(_fabric(settings),),
            load_balancing=(settings.balancing,),
            queue_pairs=settings.queue_pairs,
            placement=Placement(settings.placement),
            engine=settings.engine,
        ),
        workload=workload,
        slo=Slo(),
        routing=RoutingPolicy(settings.routing),
        decode_choice=DecodePolicy(settings.receiver),
        handoff=HandoffPolicy(
            mode=HandoffMode(settings.handoff), senders=LatentSenders(settings.senders)
        ),
        compare_aggregated=False,
        kv_pool=_pool(settings),
        seed=settings.seed,
    )


def _pool(settings: RunSettings) -> PoolRequest | None:
    if not settings.pool_stripes:
        return None
    host = TierRequest(capacity_bytes=HOST_BYTES, read_bytes_per_s=HOST_BYTES_PER_S)
    return PoolRequest(host=host, fetch_stripes=settings.pool_stripes)


def _fabric(settings: RunSettings) -> FabricChoice:
    """Return the fabric: switches of 51.2 Tbit/s, or as small as the square form allows."""
    if settings.fabric == ZCUBE_SQUARE:
        side = round(settings.num_gpus**0.5)
        return FabricChoice(kind=ZCUBE, radix=2 * side, shape={"k": side})
    assert settings.fabric in {ROFT, ZCUBE}, settings.fabric
    num_ports = 2 if settings.fabric == ZCUBE else 1
    radix = SWITCH_BPS * num_ports // (settings.nic_gbps * _GIGA)
    return FabricChoice(kind=settings.fabric, radix=min(radix, MOST_PORTS * num_ports))


def _carried(design: Design) -> dict[str, int]:
    links = design.network.busiest_links(NS_PER_S, count=_ALL_CHANNELS)
    return {link.name: link.carried_bytes for link in links}


def _links_since(design: Design, before: dict[str, int], window_ns: int) -> list[LinkLoad]:
    """Return every channel with what it carried for the measured requests."""
    loads: list[LinkLoad] = []
    for link in design.network.busiest_links(window_ns, count=_ALL_CHANNELS):
        new = link.carried_bytes - before.get(link.name, 0)
        if new > 0:
            share = link.utilization * new / link.carried_bytes
            loads.append(LinkLoad(link.name, new, share))
    return loads


def _figures(
    settings: RunSettings,
    load: CodingLoad,
    measured: Sequence[RequestRecord],
    summary: RunSummary,
    links: Sequence[LinkLoad],
    run: DesignRun,
) -> RunFigures:
    state = judge_load(measured, num_users=settings.users)
    split, wires = summary.ttft_split_mean, wires_ns(measured)
    rates = middle_rates(measured)
    tail = tail_of(measured, summary, load.cold_ids)
    nic, link = busiest(links, at_gpu=True), busiest(links, at_gpu=False)
    pressure = run.pressure
    return RunFigures(
        num_measured=len(measured),
        num_finished=summary.counts.finished,
        ttft_mean_ns=summary.ttft.mean_ns or 0,
        ttft_p50_ns=summary.ttft.p50_ns or 0,
        ttft_p99_ns=summary.ttft.p99_ns or 0,
        requests_per_s=rates[0],
        output_tokens_per_s=rates[1],
        hit_rate=summary.num_cached_tokens / max(1, summary.num_prompt_tokens),
        cold_share=len(load.cold_ids) / settings.num_requests,
        tail_cold_share=tail.cold_share,
        wire_share=wire_share(split),
        tail_wire_share=tail.wire_share,
        wire_mean_ns=0 if split is None else split.wire_ns,
        wire_p99_ns=percentile(wires, 99),
        wire_growth=growth_of(wires),
        queue_mean_ns=0 if split is None else split.prefill_queue_ns,
        compute_mean_ns=0 if split is None else split.prefill_compute_ns,
        decode_wait_mean_ns=0 if split is None else split.decode_blocks_wait_ns,
        busiest_nic=nic[0],
        nic_utilization=nic[1],
        busiest_link=link[0],
        link_utilization=link[1],
        mean_nic_utilization=_mean_sending(settings, links, transfer_window_ns(measured)),
        pressure=state.pressure.value,
        waiting_share=state.waiting_share,
        bottleneck=state.bottleneck,
        unconverged_share=None if pressure is None else pressure.unconverged_share,
        num_flows=run.num_flows,
        log_digest=run.log_digest,
    )


def _mean_sending(settings: RunSettings, links: Sequence[LinkLoad], window_ns: int) -> float:
    """Return what all prefill NICs sent over what they could have sent."""
    sent = sum(link.carried_bytes for link in links if link.name.startswith("GPU"))
    num_nics = 8 * settings.num_prefill * settings.prefill_cp
    can_send = num_nics * settings.nic_gbps * _GIGA / BITS_PER_BYTE * window_ns / NS_PER_S
    return sent / can_send if can_send else 0.0
