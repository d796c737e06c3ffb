"""Workloads from a few numbers and a seed: arrivals, lengths, shared prefixes, sessions of turns.

Each kind of randomness has a stream of its own, so that changing the arrivals does not change
a single length, and asking for more requests leaves the first ones as they were.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S, format_ns
from kvfabric.workload.arrivals import (
    Arrivals,
    BurstArrivals,
    ClosedLoop,
    ConstantArrivals,
    ConstantThink,
    GammaArrivals,
    OpenArrivals,
    PoissonArrivals,
    Think,
    draw_arrivals_ns,
    draw_arrivals_until_ns,
    draw_thinks_ns,
)
from kvfabric.workload.cold_prompts import ColdPrompts, draw_cold, with_cold_lengths
from kvfabric.workload.lengths import ConstantLength, Length, draw_lengths, largest_length
from kvfabric.workload.limits import (
    MAX_NUM_REQUESTS,
    MAX_NUM_TOKENS,
    MAX_SPAN_NS,
    require_int,
    require_real,
)

# One stream per name; the place in the list is part of the seed, so new names go at the end.
_STREAMS = ("arrivals", "turns", "prompts", "outputs", "prefixes", "think", "cold", "cold prompts")
_MAX_NUM_TURNS = 10_000
_MAX_NUM_HASHES = 50_000_000  # 8 bytes each in the tuples of a workload: 400 MB


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """System prompts that sessions have in common.

    Attributes:
        num_groups: different system prompts.
        prefix_tokens: length of each.
        zipf_exponent: prompt number k is chosen in proportion to ``k ** -zipf_exponent``;
            0 makes all of them equally popular.
    """

    num_groups: int
    prefix_tokens: int
    zipf_exponent: float = 1.0

    def __post_init__(self) -> None:
        """Refuse counts below one and an exponent out of range."""
        require_int(self.num_groups, "num_groups", low=1, high=1_000_000)
        require_int(self.prefix_tokens, "prefix_tokens", low=1, high=MAX_NUM_TOKENS)
        require_real(self.zipf_exponent, "zipf_exponent", low=0.0, high=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """What to generate; exactly one of ``num_requests`` and ``duration_ns`` ends it.

    Attributes:
        arrivals: when sessions begin. A rate counts sessions, not turns.
        prompt: new user tokens of each turn; the first turn adds the shared prefix, later turns
            add everything said before, the answers included.
        output: tokens of each answer.
        turns: turns per session.
        think: pause between an answer and the next turn of the same user.
        prefixes: shared system prompts, or None.
        cold: sessions that can reuse nothing, or None.
        num_requests: turns in all; the last sessions are cut short to meet it.
        duration_ns: sessions begin before this instant. Needs an open loop.
        hash_block_tokens: tokens per block id, used when anything can be reused at all.
        ignore_eos: every client asks for exactly the tokens that it gets, as benchmarks of fixed
            lengths do; otherwise nobody knows the length of an answer beforehand.
    """

    arrivals: Arrivals
    prompt: Length
    output: Length
    turns: Length = field(default_factory=lambda: ConstantLength(1))
    think: Think = field(default_factory=lambda: ConstantThink(0))
    prefixes: SharedPrefixes | None = None
    cold: ColdPrompts | None = None
    num_requests: int | None = None
    duration_ns: int | None = None
    hash_block_tokens: int = 16
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Refuse an unclear end, sizes out of range, and spans that integers cannot hold."""
        if (self.num_requests is None) == (self.duration_ns is None):
            raise ConfigError(
                f"read num_requests {self.num_requests} and duration_ns {self.duration_ns}",
                where="generator",
                hint="State exactly one of the two",
            )
        require_int(self.hash_block_tokens, "hash_block_tokens", low=1, high=MAX_NUM_TOKENS)
        require_int(largest_length(self.turns), "turns", low=1, high=_MAX_NUM_TURNS)
        if isinstance(self.arrivals, ClosedLoop):
            _check_closed(self.arrivals, self.num_requests)
        else:
            _check_open(self.arrivals, self.num_requests, self.duration_ns)

    @property
    def can_reuse(self) -> bool:
        """Return whether any two requests can have tokens in common."""
        return self.prefixes is not None or largest_length(self.turns) > 1


def _check_closed(arrivals: ClosedLoop, num_requests: int | None) -> None:
    if num_requests is None:
        raise ConfigError(
            "a closed loop has no duration of its own: it waits for the answers",
            where="duration_ns",
            hint="State num_requests instead",
        )
    require_int(num_requests, "num_requests", low=arrivals.num_users, high=MAX_NUM_REQUESTS)


def _check_open(arrivals: OpenArrivals, num_requests: int | None, duration_ns: int | None) -> None:
    if num_requests is not None:
        require_int(num_requests, "num_requests", low=1, high=MAX_NUM_REQUESTS)
        span_ns = num_requests * NS_PER_S / arrivals.rate_per_s
        require_real(span_ns, "num_requests / rate_per_s, in ns", low=0.0, high=float(MAX_SPAN_NS))
        return
    require_int(duration_ns, "duration_ns", low=1, high=MAX_SPAN_NS)
    expected = (duration_ns or 0) * arrivals.rate_per_s / NS_PER_S
    require_real(expected, "duration_ns * rate_per_s", low=0.0, high=float(MAX_NUM_REQUESTS))


def generate(config: GeneratorConfig, seed: int) -> Workload:
    """Return the workload of ``config``; the same seed always gives the same one.

    Sessions follow each other in order of arrival, turn by turn. In a closed loop the first turns
    of all users come first, then all second turns, and so on.

    Raises:
        ConfigError: the seed is negative, no session begins within the duration, or the result
            would not fit in memory.
    """
    require_int(seed, "seed", low=0, high=2**63 - 1)
    streams = _spawn_streams(seed)
    if isinstance(config.arrivals, ClosedLoop):
        turns = _plan_closed(config, config.arrivals, streams)
    else:
        turns = _plan_open(config, config.arrivals, streams)
    requests = tuple(_build_requests(config, turns, streams))
    return Workload(
        name=f"{_describe(config.arrivals)}, {len(requests)} requests{_cold(config)}, seed {seed}",
        requests=requests,
        hash_block_tokens=config.hash_block_tokens if config.can_reuse else 0,
        num_rows=len(requests),
        num_users=config.arrivals.num_users if isinstance(config.arrivals, ClosedLoop) else None,
    )


def _spawn_streams(seed: int) -> dict[str, np.random.Generator]:
    return {
        name: np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(idx,)))
        for idx, name in enumerate(_STREAMS)
    }


def _describe(arrivals: Arrivals) -> str:
    match arrivals:
        case PoissonArrivals():
            return f"poisson {arrivals.rate_per_s:g} /s"
        case ConstantArrivals():
            return f"constant {arrivals.rate_per_s:g} /s"
        case GammaArrivals():
            return f"gamma {arrivals.rate_per_s:g} /s cv {arrivals.cv:g}"
        case BurstArrivals():
            return f"bursts of {arrivals.size} every {format_ns(arrivals.period_ns)}"
        case ClosedLoop():
            return f"closed loop of {arrivals.num_users} users"


def _cold(config: GeneratorConfig) -> str:
    cold = config.cold
    return "" if cold is None or not cold.share else f", {cold.share:.4g} of the sessions cold"


@dataclass(frozen=True, slots=True)
class _Turn:
    """When one request comes and to which session it belongs; its place in the list is its id."""

    session_idx: int
    arrival_ns: int
    after_request_id: int | None
    think_ns: int
    is_cold: bool


def _plan_open(
    config: GeneratorConfig, arrivals: OpenArrivals, streams: dict[str, np.random.Generator]
) -> list[_Turn]:
    if config.num_requests is not None:
        num_turns, is_cold = _draw_turns(config, streams, config.num_requests)
        num_turns = _cut_to_sum(num_turns, config.num_requests)
        starts_ns = draw_arrivals_ns(arrivals, streams["arrivals"], len(num_turns))
    else:
        starts_ns = draw_arrivals_until_ns(arrivals, streams["arrivals"], config.duration_ns or 0)
        num_turns, is_cold = _draw_turns(config, streams, len(starts_ns))
    if not num_turns or sum(num_turns) > MAX_NUM_REQUESTS:
        raise ConfigError(
            f"{len(num_turns)} sessions with {sum(num_turns)} turns begin within the duration",
            where="duration_ns",
            hint=f"Choose one that gives 1 to {MAX_NUM_REQUESTS} requests",
        )
    thinks_ns = draw_thinks_ns(config.think, streams["think"], sum(num_turns))
    turns: list[_Turn] = []
    for session_idx, (start_ns, count) in enumerate(zip(starts_ns, num_turns, strict=True)):
        turns.append(_Turn(session_idx, start_ns, None, 0, is_cold[session_idx]))
        for _ in range(count - 1):
            after = len(turns) - 1
            turns.append(_Turn(session_idx, start_ns, after, thinks_ns[len(turns)], is_cold=False))
    return turns


def _draw_turns(
    config: GeneratorConfig, streams: dict[str, np.random.Generator], num_sessions: int
) -> tuple[list[int], list[bool]]:
    """Return the turns of each session, and whether it is cold: such a one has a single turn."""
    is_cold = draw_cold(config.cold, streams["cold"], num_sessions)
    drawn = draw_lengths(config.turns, streams["turns"], num_sessions)
    return [1 if cold else count for count, cold in zip(drawn, is_cold, strict=True)], is_cold


def _cut_to_sum(num_turns: Sequence[int], num_requests: int) -> list[int]:
    """Return the turns of the first sessions, the last one cut so that all sum to that number."""
    kept: list[int] = []
    left = num_requests
    for count in num_turns:
        kept.append(min(count, left))
        left -= kept[-1]
        if not left:
            break
    return kept


def _plan_closed(
    config: GeneratorConfig, arrivals: ClosedLoop, streams: dict[str, np.random.Generator]
) -> list[_Turn]:
    """Return the turns of users who each run one session after another."""
    num_requests, num_users = config.num_requests or 0, arrivals.num_users
    thinks_ns = draw_thinks_ns(config.think, streams["think"], num_requests)
    starts_ns = _user_starts_ns(arrivals, thinks_ns[:num_users], streams["arrivals"])
    num_turns, is_cold = _draw_turns(config, streams, num_requests)
    session_indices = itertools.count()
    session_by_user = [0] * num_users
    turns_left_by_user = [0] * num_users
    turns: list[_Turn] = []
    for request_id in range(num_requests):
        user = request_id % num_users
        if not turns_left_by_user[user]:
            session_by_user[user] = next(session_indices)
            turns_left_by_user[user] = num_turns[session_by_user[user]]
        turns_left_by_user[user] -= 1
        is_first = request_id < num_users
        after = None if is_first else request_id - num_users
        think_ns = 0 if is_first else thinks_ns[request_id]
        session_idx = session_by_user[user]
        turns.append(_Turn(session_idx, starts_ns[user], after, think_ns, is_cold[session_idx]))
    return turns


def _user_starts_ns(
    arrivals: ClosedLoop, thinks_ns: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """Return when the users begin, ascending.

    They are met in the middle of a pause, or without a ramp the run would open with all at once.
    """
    points = rng.random(arrivals.num_users).tolist()
    return sorted(
        int(point * think_ns) + user * arrivals.ramp_up_ns // arrivals.num_users
        for user, (point, think_ns) in enumerate(zip(points, thinks_ns, strict=True))
    )


def _build_requests(
    config: GeneratorConfig, turns: Sequence[_Turn], streams: dict[str, np.random.Generator]
) -> Iterator[RequestSpec]:
    new_tokens = with_cold_lengths(
        config.cold,
        streams["cold prompts"],
        draw_lengths(config.prompt, streams["prompts"], len(turns)),
        [turn.is_cold for turn in turns],
    )
    outputs = draw_lengths(config.output, streams["outputs"], len(turns))
    prompts = _whole_prompts(config, turns, new_tokens, outputs)
    ends = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    hashes = _chain_hashes(config, turns, ends, streams["prefixes"])
    for request_id, (turn, block_hashes) in enumerate(zip(turns, hashes, strict=True)):
        yield RequestSpec(
            request_id=request_id,
            arrival_ns=turn.arrival_ns,
            num_prompt_tokens=prompts[request_id],
            num_output_tokens=outputs[request_id],
            block_hashes=block_hashes,
            after_request_id=turn.after_request_id,
            think_ns=turn.think_ns,
            max_tokens=outputs[request_id] if config.ignore_eos else None,
        )


def _whole_prompts(
    config: GeneratorConfig,
    turns: Sequence[_Turn],
    new_tokens: Sequence[int],
    outputs: Sequence[int],
) -> list[int]:
    """Return the prompt tokens of each turn: all that its session said before, and the new ones."""
    opening_tokens = 0 if config.prefixes is None else config.prefixes.prefix_tokens
    said_by_session: dict[int, int] = {}
    prompts: list[int] = []
    for turn, num_new, num_output in zip(turns, new_tokens, outputs, strict=True):
        said = said_by_session.get(turn.session_idx, 0 if turn.is_cold else opening_tokens)
        prompts.append(said + num_new)
        said_by_session[turn.session_idx] = prompts[-1] + num_output
    return prompts


def _chain_hashes(
    config: GeneratorConfig, turns: Sequence[_Turn], ends: Sequence[int], rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Yield the ids of the full blocks up to the end of each turn; none if nothing can recur."""
    block_tokens = config.hash_block_tokens
    if not config.can_reuse:
        yield from (() for _ in turns)
        return
    _check_num_hashes(sum(end // block_tokens for end in ends), block_tokens)
    opening_ids = _draw_opening_ids(config, rng, turns)
    fresh_ids = itertools.count(_num_prefix_ids(config))
    ids_by_session: dict[int, list[int]] = {}
    for turn, end in zip(turns, ends, strict=True):
        if turn.session_idx not in ids_by_session:
            opening = [] if turn.is_cold else opening_ids(turn.session_idx)
            ids_by_session[turn.session_idx] = opening
        block_ids = ids_by_session[turn.session_idx]
        num_new = end // block_tokens - len(block_ids)
        block_ids.extend(itertools.islice(fresh_ids, num_new))
        yield tuple(block_ids)


def _check_num_hashes(num_hashes: int, block_tokens: int) -> None:
    if num_hashes > _MAX_NUM_HASHES:
        raise ConfigError(
            f"{num_hashes} block ids at {block_tokens} tokens each",
            where="hash_block_tokens",
            hint=f"Use larger blocks, fewer requests or shorter sessions: {_MAX_NUM_HASHES} fit",
        )


def _num_prefix_ids(config: GeneratorConfig) -> int:
    if config.prefixes is None:
        return 0
    return config.prefixes.num_groups * (config.prefixes.prefix_tokens // config.hash_block_tokens)


def _draw_opening_ids(
    config: GeneratorConfig, rng: np.random.Generator, turns: Sequence[_Turn]
) -> Callable[[int], list[int]]:
    """Return which ids each session opens with: none, or those of its system prompt.

    Ids ``[g * n, (g + 1) * n)`` are the n full blocks of system prompt g. The block in which the
    user's own tokens begin belongs to the session alone.
    """
    prefixes = config.prefixes
    if prefixes is None:
        return lambda _: []
    num_sessions = 1 + max(turn.session_idx for turn in turns)
    weights = np.arange(1, prefixes.num_groups + 1, dtype=np.float64) ** -prefixes.zipf_exponent
    groups = rng.choice(prefixes.num_groups, size=num_sessions, p=weights / weights.sum()).tolist()
    num_ids = prefixes.prefix_tokens // config.hash_block_tokens
    # every group is opened by a session whose ids were counted, so that these lists fit too
    ids_by_group = {g: list(range(g * num_ids, (g + 1) * num_ids)) for g in set(groups)}
    return lambda session_idx: list(ids_by_group[groups[session_idx]])
