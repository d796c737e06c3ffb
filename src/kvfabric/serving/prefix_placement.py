"""Which worker computes a prompt and what it fetches: cache hits against load.

Source: the rule of Mooncake's conductor (FAST'25, section on KV-cache-centric scheduling): the
worker with the least sum of queue, transfer and prefill time, with and without a fetch from the
best other holder. Here every worker is tried with every source, and a fetch has to beat computing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import STORAGE
from kvfabric.serving.kv_directory import PrefixSources, set_bits
from kvfabric.units import NS_PER_S, ceil_div

OWN_HOST = -2
"""Stands for the worker's own host memory where a server's number would mean another server."""


class PlacementPolicy(Enum):
    """What counts when a worker is chosen; its hits are used however it was chosen."""

    LEAST_LOADED = "least_loaded"  # the queues alone
    LOCAL_PREFIX = "local_prefix"  # and what lies in the worker's HBM and host memory
    POOL_PREFIX = "pool_prefix"  # and what it could fetch from other servers and storage


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """What a placement needs to know of the cluster; all sizes are of a whole worker.

    Attributes:
        policy: what counts.
        block_tokens: tokens per key.
        queue_tokens_per_s: prompt tokens that a worker works off, for the time in its queue.
        prefill_ns: time to compute so many prompt tokens behind so many that are there.
        kv_bytes: bytes of the KV cache of so many tokens.
        host_read_bps: bit/s from a server's host memory into its own HBM.
        remote_read_bps: bit/s from another server's host memory, over the fabric; None: no fetch.
        max_stripes: most servers that one prefix is fetched from at once, a run of blocks each.
        receive_bps: bit/s that a worker's NICs take from all these; None: no limit.
        storage_read_bps: bit/s from the storage tier; None: no fetch.
        fetch_setup_ns: fixed time of a fetch from another server or storage.
        num_layers: layers whose fetch and computation overlap; 1: all is there before it starts.
        min_gain_ns: a fetch must save more than this against computing the same tokens.
    """

    policy: PlacementPolicy = PlacementPolicy.POOL_PREFIX
    block_tokens: int
    queue_tokens_per_s: int
    prefill_ns: Callable[[int, int], int]
    kv_bytes: Callable[[int], int]
    host_read_bps: int
    remote_read_bps: int | None
    max_stripes: int = 1
    receive_bps: int | None = None
    storage_read_bps: int | None = None
    fetch_setup_ns: int = 0
    num_layers: int = 1
    min_gain_ns: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be computed with."""
        for name in (
            "block_tokens",
            "queue_tokens_per_s",
            "host_read_bps",
            "num_layers",
            "max_stripes",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="Write 1 or more")
        for name in ("remote_read_bps", "storage_read_bps", "receive_bps"):
            rate_bps = getattr(self, name)
            if rate_bps is not None and rate_bps < 1:
                raise ConfigError(f"{name} is {rate_bps}", hint="Write a rate above 0, or none")


@dataclass(frozen=True, slots=True)
class Fetch:
    """The blocks ``[first_block, end_block)`` of a prompt, read from one place.

    ``source`` is ``OWN_HOST`` (no fabric), another server, or ``STORAGE``.
    """

    source: int
    first_block: int
    end_block: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a prompt is computed.

    Hit in HBM, fetched and computed tokens add up to the prompt.

    Attributes:
        worker: who computes it.
        num_hbm_tokens: prompt tokens in the worker's HBM.
        fetches: what is read into it, in the order of the prompt.
        num_computed_tokens: prompt tokens left to compute.
        queue_ns: estimated time until the worker gets to it.
        fetch_ns: estimated time of the fetches, alone.
        prefill_ns: estimated time of the computation, alone.
        total_ns: estimated time from now to the end of the prefill.
    """

    worker: int
    num_hbm_tokens: int
    fetches: tuple[Fetch, ...]
    num_computed_tokens: int
    queue_ns: int
    fetch_ns: int
    prefill_ns: int
    total_ns: int


class _Plan(NamedTuple):
    """What any worker of one group would do, and how long it takes once it starts."""

    num_hbm_tokens: int
    fetches: tuple[Fetch, ...]
    num_computed_tokens: int
    fetch_ns: int
    prefill_ns: int
    busy_ns: int


def usable_blocks(num_prompt_tokens: int, block_tokens: int) -> int:
    """Return the leading full blocks that may be hits: at least one token is computed."""
    return max(0, num_prompt_tokens - 1) // block_tokens


def place_prompt(
    config: PlacementConfig,
    num_prompt_tokens: int,
    sources: Sequence[PrefixSources],
    queued_tokens: Sequence[int],
    *,
    outgoing_bytes: Sequence[int] = (),
    last: int = -1,
) -> Placement:
    """Return the worker with the least estimated time, and its fetches.

    Args:
        config: the cluster.
        num_prompt_tokens: tokens of the prompt.
        sources: of ``KvDirectory.best_sources``, with at most ``usable_blocks`` keys.
        queued_tokens: prompt tokens that wait at each worker.
        outgoing_bytes: bytes that wait to leave each server, if known: a fetch comes after them,
            and of several holders those with the fewest are read.
        last: worker chosen before; ties go in turn after it.
    """
    plans = [
        _best_plan(
            config, num_prompt_tokens, group, _far_fetches(config, group, outgoing_bytes, last)
        )
        for group in sources
    ]
    rate = config.queue_tokens_per_s
    queue_ns = [num_tokens * NS_PER_S // rate for num_tokens in queued_tokens]
    worker = _next_least(_costs(config, num_prompt_tokens, sources, plans, queue_ns), last)
    plan = next(p for p, g in zip(plans, sources, strict=True) if g.workers >> worker & 1)
    return Placement(
        worker=worker,
        num_hbm_tokens=plan.num_hbm_tokens,
        fetches=plan.fetches,
        num_computed_tokens=plan.num_computed_tokens,
        queue_ns=queue_ns[worker],
        fetch_ns=plan.fetch_ns,
        prefill_ns=plan.prefill_ns,
        total_ns=queue_ns[worker] + plan.busy_ns,
    )


def _costs(
    config: PlacementConfig,
    num_prompt_tokens: int,
    sources: Sequence[PrefixSources],
    plans: Sequence[_Plan],
    queue_ns: list[int],
) -> list[int]:
    """Return what counts against each worker under the policy."""
    if config.policy is PlacementPolicy.LEAST_LOADED:
        return queue_ns
    if config.policy is PlacementPolicy.LOCAL_PREFIX:
        plans = [_best_plan(config, num_prompt_tokens, group, []) for group in sources]
    # Most workers are alike: their cost is set for all at once, and the others' one by one.
    alike = max(range(len(sources)), key=lambda i: sources[i].workers.bit_count())
    costs = [wait + plans[alike].busy_ns for wait in queue_ns]
    for index, group in enumerate(sources):
        if index != alike:
            for worker in set_bits(group.workers):
                costs[worker] = queue_ns[worker] + plans[index].busy_ns
    return costs


def _next_least(costs: list[int], last: int) -> int:
    """Return the index of the least cost, the first such after ``last`` in turn."""
    least = min(costs)
    try:
        return costs.index(least, last + 1)
    except ValueError:
        return costs.index(least)


# ---- what one worker would do ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FarFetch:
    """A fetch from outside the worker's server, of one place or of stripes, and its time."""

    fetches: tuple[Fetch, ...]
    fetch_ns: int


def _far_fetches(
    config: PlacementConfig, group: PrefixSources, outgoing_bytes: Sequence[int], last: int
) -> list[_FarFetch]:
    """Return the fetches that could follow what the worker's own server holds."""
    fetches: list[_FarFetch] = []
    if config.remote_read_bps is not None and group.remote_servers:
        num_blocks = group.num_remote - group.num_local
        most = min(config.max_stripes, num_blocks)
        servers = _idlest(group.remote_servers, outgoing_bytes, last, most)
        fetches.append(_striped(config, servers, group, outgoing_bytes))
    if config.storage_read_bps is not None and group.num_storage > group.num_local:
        fetch = _fetch(config, STORAGE, group.num_local, group.num_storage)
        read_ns = _read_ns(config.kv_bytes(fetch.num_tokens), config.storage_read_bps)
        fetches.append(_FarFetch((fetch,), config.fetch_setup_ns + read_ns))
    return fetches


def _striped(
    config: PlacementConfig,
    servers: Sequence[int],
    group: PrefixSources,
    outgoing_bytes: Sequence[int],
) -> _FarFetch:
    """Return a fetch of what follows the worker's own blocks, a run of them from each server."""
    assert config.remote_read_bps is not None
    fetches: list[Fetch] = []
    longest_bytes = total_bytes = 0
    first = group.num_local
    for place, server in enumerate(servers):
        end = stripe_end(first, group.num_remote, len(servers) - place)
        fetch = _fetch(config, server, first, end)
        num_bytes = config.kv_bytes(fetch.num_tokens)
        wait_bytes = outgoing_bytes[server] if outgoing_bytes else 0
        longest_bytes = max(longest_bytes, wait_bytes + num_bytes)
        total_bytes += num_bytes
        fetches.append(fetch)
        first = end
    read_ns = _read_ns(longest_bytes, config.remote_read_bps)
    if config.receive_bps is not None:
        read_ns = max(read_ns, _read_ns(total_bytes, config.receive_bps))
    return _FarFetch(tuple(fetches), config.fetch_setup_ns + read_ns)


def stripe_end(first: int, end: int, num_left: int) -> int:
    """Return where the next stripe of ``[first, end)`` ends if ``num_left`` share it equally.

    >>> stripe_end(0, 10, 3), stripe_end(4, 10, 2), stripe_end(7, 10, 1)
    (4, 7, 10)
    """
    return first + ceil_div(end - first, num_left)


def _idlest(servers: int, outgoing_bytes: Sequence[int], last: int, most: int) -> list[int]:
    """Return the servers with the fewest bytes to send, at most so many; ties in turn."""

    def order(server: int) -> tuple[int, bool, int]:
        num_bytes = outgoing_bytes[server] if outgoing_bytes else 0
        return num_bytes, server <= last, server

    return sorted(set_bits(servers), key=order)[:most]


def _fetch(config: PlacementConfig, source: int, first_block: int, end_block: int) -> Fetch:
    num_tokens = (end_block - first_block) * config.block_tokens
    return Fetch(source, first_block, end_block, num_tokens)


def _best_plan(
    config: PlacementConfig,
    num_prompt_tokens: int,
    group: PrefixSources,
    far: Sequence[_FarFetch],
) -> _Plan:
    """Return the quickest of computing all that is not in HBM and of each fetch."""
    own: tuple[Fetch, ...] = ()
    own_ns = 0
    if group.num_local > group.num_hbm:
        own = (_fetch(config, OWN_HOST, group.num_hbm, group.num_local),)
        own_ns = _read_ns(config.kv_bytes(own[0].num_tokens), config.host_read_bps)
    best = _timed(config, num_prompt_tokens, group, (), 0)
    tried = [_timed(config, num_prompt_tokens, group, own, own_ns)] if own else []
    for item in far:
        fetches = (*own, *item.fetches)
        tried.append(_timed(config, num_prompt_tokens, group, fetches, max(own_ns, item.fetch_ns)))
    for plan in tried:
        if plan.busy_ns + config.min_gain_ns < best.busy_ns:
            best = plan
    return best


def _timed(
    config: PlacementConfig,
    num_prompt_tokens: int,
    group: PrefixSources,
    fetches: tuple[Fetch, ...],
    fetch_ns: int,
) -> _Plan:
    num_hbm_tokens = group.num_hbm * config.block_tokens
    history = num_hbm_tokens + sum(fetch.num_tokens for fetch in fetches)
    num_computed = num_prompt_tokens - history
    assert num_computed > 0, "a prompt whose every token is a hit"
    prefill_ns = config.prefill_ns(num_computed, history)
    busy_ns = overlapped_ns(fetch_ns, prefill_ns, config.num_layers)
    return _Plan(num_hbm_tokens, fetches, num_computed, fetch_ns, prefill_ns, busy_ns)


def _read_ns(num_bytes: int, rate_bps: int) -> int:
    return ceil_div(num_bytes * 8 * NS_PER_S, rate_bps)


def overlapped_ns(fetch_ns: int, prefill_ns: int, num_layers: int) -> int:
    """Return the time of a prefill whose prefix arrives layer by layer, rounded up.

    A layer is computed once it is there and the one before is done: with equal layers the longer of
    the two, plus one layer of the other. One layer: one after the other.

    >>> overlapped_ns(80, 160, 1), overlapped_ns(80, 160, 80)
    (240, 161)
    """
    longer, shorter = max(fetch_ns, prefill_ns), min(fetch_ns, prefill_ns)
    return longer + ceil_div(shorter, num_layers)
