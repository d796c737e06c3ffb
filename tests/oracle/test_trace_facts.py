"""Published figures of two public traces, and of prefix reuse in one of them."""

from collections.abc import Sequence

import numpy as np
import pytest
from reference import reference_path

from kvfabric.metrics.percentiles import nearest_rank
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.read import read_trace
from kvfabric.workload.rescale import mean_rate_per_s


@pytest.fixture(scope="module")
def conversation() -> Workload:
    return read_trace(reference_path("traces/mooncake/conversation_trace.jsonl.xz"))


@pytest.fixture(scope="module")
def azure() -> Workload:
    return read_trace(reference_path("traces/azure/AzureLLMInferenceTrace_conv.csv.xz"))


def inputs(workload: Workload) -> list[int]:
    return sorted(r.num_prompt_tokens for r in workload.requests)


def outputs(workload: Workload) -> list[int]:
    return sorted(r.num_output_tokens for r in workload.requests)


def last_arrival_s(workload: Workload) -> int:
    return round(workload.requests[-1].arrival_ns / NS_PER_S)


def mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


def test_conversation_has_the_published_size(conversation: Workload) -> None:
    # Mooncake (FAST '25), table 2: 12,031 requests, input 12,035 and output 343 tokens on average
    assert len(conversation.requests) == 12_031
    assert (mean(inputs(conversation)), mean(outputs(conversation))) == (12_035, 343)


def test_conversation_lasts_an_hour(conversation: Workload) -> None:
    # counted on the file: 3,537 s, 3.40 requests/s
    assert last_arrival_s(conversation) == 3_537
    assert mean_rate_per_s(conversation.requests) == pytest.approx(3.40, abs=0.005)


# Counted on the file with numpy, apart from this code: percent, interpolated, nearest rank. The
# figures in circulation (input p99 85,400; output p99 1,119) interpolate between two requests;
# the nearest rank is the next length that a request really has.
@pytest.mark.parametrize(
    ("percent", "interpolated", "nearest"),
    [(50, 6_909, 6_909), (90, 27_367, 27_367), (99, 85_400, 85_401), (100, 126_195, 126_195)],
)
def test_conversation_inputs_have_the_counted_percentiles(
    conversation: Workload, percent: int, interpolated: int, nearest: int
) -> None:
    assert round(float(np.percentile(inputs(conversation), percent))) == interpolated
    assert nearest_rank(inputs(conversation), percent) == nearest


@pytest.mark.parametrize(
    ("percent", "interpolated", "nearest"),
    [(50, 350, 350), (90, 597, 597), (99, 1_119, 1_120), (100, 2_000, 2_000)],
)
def test_conversation_outputs_have_the_counted_percentiles(
    conversation: Workload, percent: int, interpolated: int, nearest: int
) -> None:
    assert round(float(np.percentile(outputs(conversation), percent))) == interpolated
    assert nearest_rank(outputs(conversation), percent) == nearest


def test_conversation_refers_to_blocks_as_counted(conversation: Workload) -> None:
    # 288,500 references, 182,790 blocks: with an endless cache 36.64 % of references hit
    references = [hash_id for r in conversation.requests for hash_id in r.block_hashes]
    assert (len(references), len(set(references))) == (288_500, 182_790)
    assert 1 - len(set(references)) / len(references) == pytest.approx(0.3664, abs=5e-5)


def test_conversation_ids_are_chained(conversation: Workload) -> None:
    """Equal ids mean equal tokens before them too, as ``RequestSpec`` promises."""
    before_by_id: dict[int, int | None] = {}
    for request in conversation.requests:
        previous: int | None = None
        for hash_id in request.block_hashes:
            assert before_by_id.setdefault(hash_id, previous) == previous
            previous = hash_id


def test_conversation_block_is_full_everywhere_or_nowhere(conversation: Workload) -> None:
    """No id stands for a part of a block in one prompt and for more of it in another."""
    tokens_by_id: dict[int, int] = {}
    for request in conversation.requests:
        for hash_id, num_tokens in block_fills(request):
            assert tokens_by_id.setdefault(hash_id, num_tokens) == num_tokens


def block_fills(request: RequestSpec) -> list[tuple[int, int]]:
    return [
        (hash_id, min(512, request.num_prompt_tokens - 512 * idx))
        for idx, hash_id in enumerate(request.block_hashes)
    ]


def test_conversation_has_no_bad_rows(conversation: Workload) -> None:
    assert (conversation.bad_rows, conversation.num_rows) == ((), 12_031)
    assert conversation.hash_block_tokens == 512


def test_conversation_beyond_a_model_is_listed_row_by_row() -> None:
    path = reference_path("traces/mooncake/conversation_trace.jsonl.xz")
    workload = read_trace(path, on_bad_rows="skip", max_model_len=32_768)
    assert len(workload.requests) + len(workload.bad_rows) == 12_031
    longest = max(r.num_prompt_tokens + r.num_output_tokens for r in workload.requests)
    assert longest <= 32_768
    # between the p90 and the p99 of the inputs (27,367 and 85,400)
    assert 120 < len(workload.bad_rows) < 1_203


def test_azure_has_the_counted_size(azure: Workload) -> None:
    # AzureLLMInferenceTrace_conv.csv (2023, CC-BY-4.0), counted on the file
    assert (len(azure.requests), azure.bad_rows) == (19_366, ())
    assert last_arrival_s(azure) == 3_502
    assert mean_rate_per_s(azure.requests) == pytest.approx(5.53, abs=0.005)
    assert (mean(inputs(azure)), mean(outputs(azure))) == (1_155, 211)


# p90: 2,734.5 between two requests, 2,734 in circulation
@pytest.mark.parametrize(
    ("percent", "interpolated", "nearest"),
    [(50, 1_020, 1_020), (90, 2_734, 2_735), (99, 4_142, 4_142), (100, 14_050, 14_050)],
)
def test_azure_inputs_have_the_counted_percentiles(
    azure: Workload, percent: int, interpolated: int, nearest: int
) -> None:
    assert round(float(np.percentile(inputs(azure), percent))) == interpolated
    assert nearest_rank(inputs(azure), percent) == nearest


@pytest.mark.parametrize(("percent", "tokens"), [(50, 129), (90, 424), (99, 601), (100, 1_000)])
def test_azure_outputs_have_the_counted_percentiles(
    azure: Workload, percent: int, tokens: int
) -> None:
    assert nearest_rank(outputs(azure), percent) == tokens


def test_azure_head_has_the_counted_figures(azure: Workload) -> None:
    # first 4,000 requests: span 815 s, 4.9 requests/s, mean input 1,183 and output 254,
    # p99 of the input 4,116 (counted on the file, one rank above the nearest: place int(0.99 * n))
    head = Workload(name="head", requests=azure.requests[:4000], hash_block_tokens=0, num_rows=4000)
    assert last_arrival_s(head) == 815
    assert mean_rate_per_s(head.requests) == pytest.approx(4.9, abs=0.05)
    assert (mean(inputs(head)), mean(outputs(head))) == (1_183, 254)
    assert (nearest_rank(inputs(head), 99), inputs(head)[3960]) == (4_114, 4_116)


def test_azure_arrivals_keep_the_seventh_decimal(azure: Workload) -> None:
    # rows 1 and 19,366 of the file: 18:15:46.6805900 and 19:14:08.4025270
    assert azure.requests[-1].arrival_ns == 3_501_721_937_000
