"""Laws of workloads: nothing is dropped in silence, streams are independent, ids are chained."""

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.workload.arrivals import (
    Arrivals,
    ClosedLoop,
    ConstantArrivals,
    ConstantThink,
    ExponentialThink,
    GammaArrivals,
    PoissonArrivals,
    Think,
)
from kvfabric.workload.azure import parse_azure
from kvfabric.workload.generator import GeneratorConfig, SharedPrefixes, generate
from kvfabric.workload.lengths import (
    ConstantLength,
    EmpiricalLength,
    Length,
    LognormalLength,
    UniformLength,
)
from kvfabric.workload.mooncake import parse_mooncake
from kvfabric.workload.rescale import speed_up, take_first, take_window

LENGTHS: st.SearchStrategy[Length] = st.one_of(
    st.builds(ConstantLength, st.integers(1, 300)),
    st.just(UniformLength(1, 200)),
    st.just(LognormalLength(60, 1.0, 1, 500)),
    st.just(EmpiricalLength((1, 16, 17, 200))),
)
RATES = st.floats(0.01, 1e6)
OPEN_ARRIVALS: st.SearchStrategy[Arrivals] = st.one_of(
    st.builds(PoissonArrivals, RATES),
    st.builds(ConstantArrivals, RATES),
    st.builds(GammaArrivals, RATES, st.floats(0.1, 10)),
)
THINKS: st.SearchStrategy[Think] = st.one_of(
    st.builds(ConstantThink, st.integers(0, 10**10)),
    st.builds(ExponentialThink, st.integers(0, 10**10)),
)
CONFIGS = st.builds(
    GeneratorConfig,
    arrivals=st.one_of(OPEN_ARRIVALS, st.builds(ClosedLoop, st.integers(1, 5))),
    prompt=LENGTHS,
    output=LENGTHS,
    turns=st.one_of(st.just(ConstantLength(1)), st.just(UniformLength(1, 5))),
    think=THINKS,
    prefixes=st.one_of(
        st.none(),
        st.builds(SharedPrefixes, st.integers(1, 4), st.integers(1, 100), st.floats(0, 3)),
    ),
    num_requests=st.integers(5, 40),
    hash_block_tokens=st.sampled_from([1, 16, 64]),
)
SEEDS = st.integers(0, 2**32)


@given(CONFIGS, SEEDS)
def test_generated_ids_ascend_and_first_turns_come_in_order(
    config: GeneratorConfig, seed: int
) -> None:
    requests = generate(config, seed).requests
    firsts = [r.arrival_ns for r in requests if r.after_request_id is None]
    assert [r.request_id for r in requests] == list(range(config.num_requests or 0))
    assert firsts == sorted(firsts)
    assert all(
        r.after_request_id < r.request_id for r in requests if r.after_request_id is not None
    )
    assert min(r.num_prompt_tokens for r in requests) >= 1


@given(CONFIGS, SEEDS)
def test_generated_requests_follow_at_most_one_each(config: GeneratorConfig, seed: int) -> None:
    followed = [r.after_request_id for r in generate(config, seed).requests]
    chained = [request_id for request_id in followed if request_id is not None]
    assert len(chained) == len(set(chained))


@given(CONFIGS, SEEDS)
def test_generated_hashes_cover_the_full_blocks_of_prompt_and_output(
    config: GeneratorConfig, seed: int
) -> None:
    workload = generate(config, seed)
    for request in workload.requests:
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        expected = num_tokens // config.hash_block_tokens if workload.hash_block_tokens else 0
        assert len(request.block_hashes) == expected


@given(CONFIGS, SEEDS)
def test_generated_hash_ids_are_chained(config: GeneratorConfig, seed: int) -> None:
    """Equal ids stand at the same place and mean that all ids before are equal too."""
    before_by_id: dict[int, tuple[int, ...]] = {}
    for request in generate(config, seed).requests:
        for place, hash_id in enumerate(request.block_hashes):
            before = request.block_hashes[:place]
            assert before_by_id.setdefault(hash_id, before) == before


@given(CONFIGS, SEEDS)
def test_a_longer_workload_begins_with_the_shorter_one(config: GeneratorConfig, seed: int) -> None:
    longer = replace(config, num_requests=(config.num_requests or 0) + 7)
    pairs = zip(generate(config, seed).requests, generate(longer, seed).requests, strict=False)
    assert all(a == b for a, b in pairs)


def lengths_of(workload: Workload) -> list[tuple[int, int]]:
    return [(r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]


OPEN_CONFIGS = CONFIGS.filter(lambda config: not isinstance(config.arrivals, ClosedLoop))


@given(OPEN_CONFIGS, OPEN_ARRIVALS, SEEDS)
def test_arrivals_do_not_shift_lengths_prefixes_or_pauses(
    config: GeneratorConfig, arrivals: Arrivals, seed: int
) -> None:
    before = generate(config, seed).requests
    after = generate(replace(config, arrivals=arrivals), seed).requests
    assert [replace(r, arrival_ns=0) for r in before] == [replace(r, arrival_ns=0) for r in after]


@given(OPEN_CONFIGS, LENGTHS, SEEDS)
def test_prompts_do_not_shift_arrivals_outputs_or_pauses(
    config: GeneratorConfig, prompt: Length, seed: int
) -> None:
    def kept(request: RequestSpec) -> tuple[int, int, int, int | None]:
        return (
            request.arrival_ns,
            request.num_output_tokens,
            request.think_ns,
            request.after_request_id,
        )

    before, after = generate(config, seed), generate(replace(config, prompt=prompt), seed)
    assert [kept(r) for r in before.requests] == [kept(r) for r in after.requests]


@given(OPEN_CONFIGS, THINKS, SEEDS)
def test_pauses_do_not_shift_arrivals_lengths_or_prefixes(
    config: GeneratorConfig, think: Think, seed: int
) -> None:
    before = generate(config, seed).requests
    after = generate(replace(config, think=think), seed).requests
    assert [replace(r, think_ns=0) for r in before] == [replace(r, think_ns=0) for r in after]


@given(OPEN_CONFIGS, SEEDS)
def test_prefixes_do_not_shift_arrivals_or_outputs(config: GeneratorConfig, seed: int) -> None:
    before = generate(replace(config, prefixes=None), seed).requests
    after = generate(replace(config, prefixes=SharedPrefixes(7, 48)), seed).requests
    assert [r.arrival_ns for r in before] == [r.arrival_ns for r in after]
    assert [(r.num_prompt_tokens + 48, r.num_output_tokens) for r in before] == [
        (r.num_prompt_tokens, r.num_output_tokens) for r in after
    ]


VALUES = st.one_of(
    st.integers(-3, 5000),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 9), max_size=4),
)
MOONCAKE_ROWS = st.dictionaries(
    st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]), VALUES
).map(json.dumps)
LINES = st.lists(st.one_of(st.text(), MOONCAKE_ROWS), max_size=12)


@given(LINES, st.one_of(st.none(), st.integers(2, 5000)))
@settings(max_examples=300)
def test_mooncake_accounts_for_every_row(texts: list[str], max_model_len: int | None) -> None:
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1}'
    lines = enumerate([good, *texts], start=1)
    workload = parse_mooncake(lines, name="t", on_bad_rows="skip", max_model_len=max_model_len)
    assert workload.num_rows == 1 + sum(bool(text.strip()) for text in texts)
    assert len(workload.requests) + len(workload.bad_rows) == workload.num_rows
    assert [bad.line for bad in workload.bad_rows] == sorted({b.line for b in workload.bad_rows})


AZURE_ROWS = st.tuples(
    st.one_of(st.datetimes().map(str), st.text(max_size=4)),
    VALUES.map(str),
    VALUES.map(str),
).map(",".join)


@given(st.lists(st.one_of(st.text(), AZURE_ROWS), max_size=12))
@settings(max_examples=300)
def test_azure_accounts_for_every_row(texts: list[str]) -> None:
    head = ["TIMESTAMP,ContextTokens,GeneratedTokens", "1970-01-01 00:00:00,1,1"]
    lines = enumerate([*head, *texts], start=1)
    workload = parse_azure(lines, name="t", on_bad_rows="skip")
    assert workload.num_rows == 1 + sum(bool(text.strip()) for text in texts)
    assert len(workload.requests) + len(workload.bad_rows) == workload.num_rows
    arrivals = [r.arrival_ns for r in workload.requests]
    assert arrivals == sorted(arrivals)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 3000), st.integers(1, 99))))
def test_mooncake_reads_back_what_was_written(rows: list[tuple[int, int, int]]) -> None:
    ordered = sorted([(0, 1, 1), *rows])
    texts = [
        json.dumps(
            {
                "timestamp": ms,
                "input_length": num_prompt,
                "output_length": num_output,
                "hash_ids": list(range(-(-num_prompt // 512))),
            }
        )
        for ms, num_prompt, num_output in ordered
    ]
    requests = parse_mooncake(enumerate(texts, start=1), name="t").requests
    assert [
        (r.arrival_ns // 1_000_000, r.num_prompt_tokens, r.num_output_tokens) for r in requests
    ] == ordered


@given(CONFIGS, SEEDS, st.floats(1e-3, 1e3))
def test_speed_up_keeps_the_order_of_arrivals(
    config: GeneratorConfig, seed: int, speedup: float
) -> None:
    workload = generate(config, seed)
    faster = speed_up(workload, speedup)
    firsts = [r.arrival_ns for r in faster.requests if r.after_request_id is None]
    assert firsts == sorted(firsts)
    assert lengths_of(faster) == lengths_of(workload)
    assert speed_up(workload, 1.0).requests == workload.requests


@given(CONFIGS, SEEDS, st.integers(1, 50))
def test_parts_never_follow_a_request_left_out(
    config: GeneratorConfig, seed: int, count: int
) -> None:
    workload = generate(config, seed)
    start_ns = workload.requests[min(count, len(workload.requests) - 1)].arrival_ns
    for part in (take_first(workload, count), take_window(workload, start_ns)):
        kept = {r.request_id for r in part.requests}
        assert all(r.after_request_id in kept | {None} for r in part.requests)
        assert len(part.requests) + len(part.bad_rows) == part.num_rows
