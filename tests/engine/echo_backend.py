"""A backend without an engine: every output is its prompt over and over, one byte per token."""

import asyncio
import itertools
import threading
import time  # noqa: TID251 - receivers are told when
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvfabric.engine.detokenizer import Detokenizer, StopTexts
from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.engine.server.backend import BackendStats, Receiver, ServedModel
from kvfabric.errors import ConfigError
from kvfabric.protocol.record import Outcome, RequestRecord

EOS = 256
MODEL = ServedModel(name="echo", max_model_len=200, vocab_size=257, created_s=1_700_000_000)


class ByteCodec:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(t for t in token_ids if t != EOS).decode(errors="replace")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise ConfigError("the model's chat template refuses the messages: user first")
        return self.encode("".join(f"{m['role']}:{m['content']}\n" for m in messages))


@dataclass
class EchoBackend:
    """Gives a token every ``pace_s``; ``failing`` ends every request so after its first token.

    ``held_after`` so many tokens a request waits until ``released`` is set.
    """

    pace_s: float = 0.0
    held_after: int | None = None
    released: threading.Event = field(default_factory=threading.Event)
    failing: Outcome | None = None
    model: ServedModel = MODEL
    codec: ByteCodec = field(default_factory=ByteCodec)
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    sampled: list[Sampling] = field(default_factory=list)
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling, receiver: Receiver) -> int:
        request_id = next(self._ids)
        self.sampled.append(sampling)
        work = self._generate(request_id, prompt_ids, sampling, receiver)
        self.running[request_id] = asyncio.get_running_loop().create_task(work)
        return request_id

    def cancel(self, request_id: int) -> None:
        task = self.running.get(request_id)
        if task is not None:
            self.cancelled.append(request_id)
            task.cancel()

    def stats(self) -> BackendStats:
        return BackendStats(len(self.running), 0, len(self.running) / 8, 1)

    async def _generate(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, receiver: Receiver
    ) -> None:
        start_ns = time.monotonic_ns()
        outcome, finish, num_tokens = Outcome.ABORTED, None, 0
        stops = StopTexts(Detokenizer(self.codec.decode), sampling.stop)
        try:
            for token_id in itertools.cycle(prompt_ids):
                await asyncio.sleep(self.pace_s)
                while num_tokens == self.held_after and not self.released.is_set():  # noqa: ASYNC110 - of threads
                    await asyncio.sleep(0.005)
                receiver.on_token(token_id, time.monotonic_ns())
                num_tokens += 1
                if self.failing:
                    outcome = self.failing
                    break
                is_stop = stops.push(token_id) or token_id in sampling.stop_token_ids
                if is_stop or (token_id == EOS and not sampling.ignore_eos):
                    finish = FinishReason.STOP
                elif num_tokens == sampling.max_tokens:
                    finish = FinishReason.LENGTH
                if finish:
                    outcome = Outcome.FINISHED
                    break
        finally:
            del self.running[request_id]
            record = RequestRecord(
                request_id=request_id,
                outcome=outcome,
                arrival_ns=start_ns,
                prefill_start_ns=start_ns,
                prefill_end_ns=start_ns + 1_000_000,
                transferred_ns=start_ns + 3_000_000,
                transfer_bytes=1000,
                num_prompt_tokens=len(prompt_ids),
                num_output_tokens=num_tokens,
                num_cached_tokens=len(prompt_ids) // 4 * 2,
            )
            receiver.on_end(record, finish)
