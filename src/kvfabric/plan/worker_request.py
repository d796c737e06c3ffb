"""The workers of a fleet: their GPUs, limits and places, and what cannot be laid out."""

from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import KVGeometry, undivided
from kvfabric.perf.context_parallel import CpExchange, step_traffic
from kvfabric.plan.worker_layout import (
    SERVER_GPUS,
    fills_servers,
    in_turn,
    place_workers,
    worker_names,
)


class Placement(Enum):
    """Where prefill and decode workers stand; it decides which links a hand-off crosses."""

    SPLIT = "split"  # prefill workers in the first servers, decode workers after them
    INTERLEAVED = "interleaved"  # evenly mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """The workers of the fleet; names as in vLLM.

    Attributes:
        num_prefill: prefill workers.
        num_decode: decode workers.
        tp: tensor-parallel GPUs of a worker; of each of its ranks, if it is context-parallel.
        decode_tp: GPUs of a decode worker; ``tp`` by default.
        prefill_cp: context-parallel ranks of a prefill worker.
        cp_exchange: how they see each other's tokens.
        kv_dtype: ``auto`` or a cache type.
        weight_dtype: ``auto`` or a weight format.
        block_size: tokens per KV block.
        max_num_seqs: most requests per step.
        max_num_batched_tokens: most tokens per step.
        max_model_len: most tokens of one request; None: what model and KV memory allow.
        gpu_memory_utilization: share of the visible memory the engine may use.
        enable_prefix_caching: find full blocks again by prefix.
        num_blocks: KV blocks of a worker (of a context-parallel rank), the null block included, as
            an engine reported them; None takes our own sizing.
        decode_num_blocks: the same of a decode worker; ``num_blocks`` by default.
        async_scheduling: plan the next step while one runs.
        num_data_ranks: data-parallel ranks that share the experts of a layer; so many workers of a
            kind step together.
    """

    num_prefill: int
    num_decode: int
    tp: int = 8
    decode_tp: int | None = None
    prefill_cp: int = 1
    cp_exchange: CpExchange = CpExchange.ALL_GATHER_KV
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: int = 64
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    num_blocks: int | None = None
    decode_num_blocks: int | None = None
    async_scheduling: bool = False
    num_data_ranks: int = 1

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of the fleet."""
        return self.num_prefill * self.prefill_gpus + self.num_decode * self.decode_gpus

    @property
    def prefill_gpus(self) -> int:
        """Return the GPUs of a prefill (or aggregated) worker."""
        return self.tp * self.prefill_cp

    @property
    def decode_gpus(self) -> int:
        """Return the GPUs of a decode worker."""
        return self.tp if self.decode_tp is None else self.decode_tp

    @property
    def are_alike(self) -> bool:
        """Return whether prefill and decode workers have the same GPUs and blocks."""
        same_blocks = self.decode_num_blocks in {None, self.num_blocks}
        return self.prefill_cp == 1 and self.decode_gpus == self.tp and same_blocks

    @property
    def names(self) -> list[str]:
        """Return the name of each worker, prefill workers first."""
        return worker_names(self.num_prefill, self.num_decode)


def place(workers: WorkerRequest, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Return the fabric GPUs of each worker, prefill workers first, ranks in order."""
    order = in_turn(
        workers.num_prefill,
        workers.num_decode,
        is_interleaved=placement is Placement.INTERLEAVED,
    )
    sizes = (
        workers.prefill_gpus if worker < workers.num_prefill else workers.decode_gpus
        for worker in order
    )
    placed = dict(zip(order, place_workers(sizes), strict=True))
    return tuple(placed[worker] for worker in sorted(placed))


def check_layout(workers: WorkerRequest, geometry: KVGeometry) -> None:
    """Refuse workers that the model cannot be divided over.

    Raises:
        ConfigError: names the setting and what to write instead.
    """
    _check_decode_alone(workers)
    _check_tp("tp", workers.tp)
    _check_decode_tp(workers, geometry)
    _check_context_parallel(workers, geometry)


def _check_decode_alone(workers: WorkerRequest) -> None:
    """Refuse what tells prefill from decode workers where every worker does both."""
    if workers.num_decode:
        return
    for name in ("decode_tp", "decode_num_blocks"):
        if getattr(workers, name) is not None:
            raise ConfigError(
                "there are no decode workers",
                where=f"workers.{name}",
                hint="Leave the key out, or write workers.decode 1 or more",
            )
    if workers.prefill_cp != 1:
        raise ConfigError(
            "workers that decode cannot have context-parallel ranks",
            where="workers.prefill_cp",
            hint="Write 1, or workers.decode 1 or more: then prefill workers only prefill",
        )


def _check_tp(name: str, tp: int) -> None:
    if SERVER_GPUS % tp:
        raise ConfigError(
            f"{name} {tp} does not divide the {SERVER_GPUS} GPUs of a server",
            where=f"workers.{name}",
            hint="Write 1, 2, 4 or 8",
        )


def _check_decode_tp(workers: WorkerRequest, geometry: KVGeometry) -> None:
    if workers.decode_gpus == workers.tp:
        return
    _check_tp("decode_tp", workers.decode_gpus)
    problem = undivided(geometry, workers.decode_gpus)
    if problem:
        raise ConfigError(
            f"tensor-parallel size {workers.decode_gpus} {problem}",
            where="workers.decode_tp",
            hint="Write a size that the model can be split into",
        )
    if workers.num_blocks is not None and workers.decode_num_blocks is None:
        raise ConfigError(
            f"num_blocks is of workers of {workers.tp} GPUs, decode workers have"
            f" {workers.decode_gpus}",
            where="workers.num_blocks",
            hint="Add workers.decode_num_blocks, or leave both to our own sizing",
        )


def _check_context_parallel(workers: WorkerRequest, geometry: KVGeometry) -> None:
    if workers.prefill_cp == 1:
        return
    if workers.num_data_ranks > 1:
        raise UnsupportedError(
            "context-parallel ranks with data-parallel ranks",
            where="workers.prefill_cp",
            hint="Write 1, or perf.data_parallel 1",
        )
    ranks = [[rank] * workers.tp for rank in range(workers.prefill_cp)]
    try:
        step_traffic(workers.cp_exchange, geometry, ranks, [(1, 0)])
    except ConfigError as error:
        raise ConfigError(error.what, where="workers.cp_exchange", hint=error.hint) from None


def check_servers(workers: WorkerRequest, placement: Placement) -> None:
    """Refuse workers that do not fill servers.

    Raises:
        ConfigError: names the setting and what to write instead.
    """
    num_gpus = workers.num_gpus
    if num_gpus % SERVER_GPUS:
        raise ConfigError(
            f"{num_gpus} GPUs do not fill servers of {SERVER_GPUS}",
            where="workers",
            hint="Change the number of workers",
        )
    if not fills_servers(place(workers, placement)):
        raise ConfigError(
            f"prefill workers of {workers.prefill_gpus} GPUs and decode workers of"
            f" {workers.decode_gpus} do not fill servers of {SERVER_GPUS} when every one"
            " stays inside a server",
            where="workers",
            hint="Change workers.prefill_cp, or the number of workers",
        )
