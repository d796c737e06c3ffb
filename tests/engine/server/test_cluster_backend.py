"""The server in front of real control and stand-in executors: tokens, and no block left behind."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import openai
import pytest
from fake_clusters import NUM_LAYERS, fake_executor, settings_of
from http_server import Running, serving, wait_until

from kvfabric.engine.executor_port import EngineStep, Sampling
from kvfabric.engine.fake_executor import VOCAB_SIZE, reference_tokens
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.engine.server.backend import ServedModel
from kvfabric.engine.server.cluster_backend import ClusterBackend, OutputRelay

_MODEL = ServedModel(name="fake", max_model_len=120, vocab_size=VOCAB_SIZE, created_s=0)
_FIRST = 0x4E00  # a plane of characters without a meaning of their own here


class CharacterCodec:
    """One character per token."""

    def encode(self, text: str) -> list[int]:
        return [(ord(character) - _FIRST) % VOCAB_SIZE for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(_FIRST + token_id) for token_id in token_ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))


class Steps:
    """Steps of a millisecond; one that comes to position ``held_at`` waits for ``released``."""

    held_at = 1 << 30

    def __init__(self) -> None:
        self.released = threading.Event()

    def step_ns(self, step: EngineStep) -> int:
        if any(share.first >= self.held_at for share in step.scheduled):
            self.released.wait()
        return 1_000_000 if step.scheduled else 0


class Served:
    """A cluster, the server in front of it, and a client."""

    def __init__(
        self, cluster: LocalCluster, steps: Steps, server: Running, client: openai.OpenAI
    ) -> None:
        self.cluster, self.steps, self.server, self.client = cluster, steps, server, client

    @property
    def num_held_blocks(self) -> int:
        return self.cluster.loop.driver.num_held_blocks

    def complete(self, prompt: Any, **options: Any) -> Any:
        return self.client.completions.create(model="fake", prompt=prompt, temperature=0, **options)


@contextlib.contextmanager
def serve(num_prefill: int, num_decode: int) -> Iterator[Served]:
    settings = settings_of(num_prefill=num_prefill, num_decode=num_decode, signal_interval_ns=10**6)
    steps = Steps()
    executors = [fake_executor(settings, steps.step_ns) for _ in range(settings.num_workers)]
    relay = OutputRelay()
    cluster = LocalCluster(
        settings,
        executors,
        relay,
        block_bytes=executors[0].block_bytes,
        num_layers=NUM_LAYERS,
        on_error=lambda _: relay.fail(),
        check=True,
    )
    with cluster:
        backend = ClusterBackend(
            cluster.loop,
            relay,
            _MODEL,
            CharacterCodec(),
            block_size=settings.block_size,
            is_alive=lambda: cluster.is_alive,
        )
        with serving(backend) as server:
            url = server.url + "/v1"
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                try:
                    yield Served(cluster, steps, server, client)
                finally:
                    steps.released.set()


@pytest.fixture(params=[(1, 0), (2, 0), (1, 2)], ids=["one", "two", "disaggregated"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serve(*request.param) as served:
        yield served


def _reference(prompt_ids: Sequence[int], max_tokens: int) -> str:
    return CharacterCodec().decode(reference_tokens(prompt_ids, Sampling(max_tokens)))


def test_many_requests_get_the_tokens_of_the_model(served: Served) -> None:
    prompts = [list(range(i, i + 5 + 3 * i)) for i in range(20)]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda prompt: served.complete(prompt, max_tokens=20), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.choices[0].text == _reference(prompt, 20)
    wait_until(lambda: served.num_held_blocks == 0)


def test_a_prompt_seen_before_is_found_in_the_cache(served: Served) -> None:
    prompt = list(range(40))
    first = served.complete(prompt, max_tokens=3)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    second = served.complete(prompt, max_tokens=3)
    assert second.choices[0].text == first.choices[0].text
    if len(served.cluster.loop.driver.workers) == 1:
        assert second.usage.prompt_tokens_details.cached_tokens == 36


def test_a_client_that_leaves_frees_its_blocks(served: Served) -> None:
    served.steps.held_at = 10
    stream = served.complete([[i, 1, 2] for i in range(6)], max_tokens=110, stream=True)
    next(iter(stream))
    assert served.num_held_blocks > 0
    stream.close()
    wait_until(lambda: served.cluster.loop.driver.num_in_flight == 0)
    served.steps.released.set()
    wait_until(lambda: served.num_held_blocks == 0)


def test_gauges_and_hand_off_are_shown(served: Served) -> None:
    served.complete(list(range(30)), max_tokens=4)
    text = served.server.get("/metrics").text
    num_workers = len(served.cluster.loop.driver.workers)
    assert f'kvfabric:num_workers{{model_name="fake"}} {num_workers}.0' in text
    assert 'kvfabric:num_requests_running{model_name="fake"} 0.0' in text
    num_bytes = 30 * 8 * NUM_LAYERS if num_workers == 3 else 0
    assert f'kvfabric:kv_transfer_bytes_total{{model_name="fake"}} {num_bytes}.0' in text


def test_a_dead_worker_is_an_error_or_a_new_start(served: Served) -> None:
    served.steps.held_at = 10
    stream = served.complete([1, 2, 3], max_tokens=110, stream=True)
    text = next(iter(stream)).choices[0].text
    workers = served.cluster.loop.driver.workers
    num_workers = len(workers)
    (dies,) = [i for i in range(num_workers) if workers[i].scheduler.kv.pool.num_used]
    served.cluster.kill(dies)
    served.steps.released.set()
    if num_workers == 1:
        with pytest.raises(openai.APIError) as failed:
            list(stream)
        assert failed.value.code == "worker_lost"
        assert served.server.get("/health").status_code == 503
    else:
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == _reference([1, 2, 3], 110)
        assert served.server.get("/health").json()["workers"] == num_workers - 1


def break_control(served: Served) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    served.cluster.loop.driver.advance = fail  # type: ignore[method-assign,assignment]


def assert_control_is_missed(served: Served) -> None:
    assert served.server.get("/health").status_code == 200
    served.steps.held_at = 10
    stream = served.complete([1, 2, 3], max_tokens=110, stream=True)
    next(iter(stream))
    break_control(served)
    served.steps.released.set()
    with pytest.raises(openai.APIError) as failed:
        list(stream)
    assert failed.value.code == "worker_lost"
    assert served.server.get("/health").status_code == 503
    with pytest.raises(openai.APIStatusError) as refused:
        served.complete([1, 2, 3], max_tokens=2)
    assert refused.value.status_code == 503
    assert not served.cluster.is_alive


def test_a_control_loop_that_dies_fails_what_is_open_and_what_comes() -> None:
    # what ended the loop is raised where the cluster ends
    with pytest.raises(ZeroDivisionError), serve(1, 1) as served:
        assert_control_is_missed(served)
