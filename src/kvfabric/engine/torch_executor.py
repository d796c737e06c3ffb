"""Runs engine steps on torch: weights, KV tensors, token ids and sampling of one worker.

It decides nothing but what is sampled, and which token ends an output.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from kvfabric.engine import compiled_decoder
from kvfabric.engine.attention import PagedAttention
from kvfabric.engine.decoder import Attention, Decoder
from kvfabric.engine.detokenizer import Detokenizer, StopTexts
from kvfabric.engine.executor_port import (
    EngineStep,
    FailedRequest,
    FinishReason,
    NewRequest,
    Reached,
    SampledToken,
    ScheduledTokens,
    StepOutput,
)
from kvfabric.engine.int8_kv import Int8KvTensors
from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.kv_tensors import KvTensors, PlainKvTensors
from kvfabric.engine.layer_reports import ReportingAttention
from kvfabric.engine.model_spec import ModelSpec
from kvfabric.engine.sampler import Draw, sample
from kvfabric.engine.step_batch import BatchBuilder, Ids, RequestShare
from kvfabric.engine.weights import DecoderWeights
from kvfabric.errors import ConfigError


class TorchExecutor:
    """An ``Executor`` on one device.

    It is not safe to use from several threads at once, but for reading and writing blocks that no
    step computes with at the time.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: str | None = None,
        decode_text: Callable[[Sequence[int]], str] | None = None,
        compiled: bool | None = None,
        memory: memoryview | None = None,
    ) -> None:
        """Make the KV cache, in memory that is given or beside the weights.

        Args:
            spec: the model's shape.
            weights: in the dtype and on the device that all is computed in.
            num_blocks: of the pool, the null block 0 included.
            block_size: tokens per block.
            kv_dtype: ``int8`` stores K and V in 8 bits; None in the weights' dtype.
            decode_text: the tokenizer's decoding; needed for stop texts only.
            compiled: decode with compiled kernels where they can; None: where they pay.
            memory: zeros on the CPU, where the KV cache is to lie as ``pool_shape_of`` says.
        """
        dtype, device = weights.embedding.dtype, weights.embedding.device
        layout = kv_layout_of(spec, weights, block_size, kv_dtype)
        self.kv: KvTensors
        if kv_dtype == "int8":
            self.kv = Int8KvTensors(layout, num_blocks, device, dtype, memory)
        else:
            self.kv = PlainKvTensors(layout, num_blocks, device, memory)
        self._decoder, self._device, self._decode_text = Decoder(spec, weights), device, decode_text
        self._batches = BatchBuilder(block_size, spec.num_kv_heads * spec.head_dim, dtype, device)
        wanted = compiled_decoder.pays(weights) if compiled is None else compiled
        self._compiled = compiled_decoder.decoder_for(spec, weights, self.kv) if wanted else None
        self._requests: dict[int, _Request] = {}

    @torch.inference_mode()
    def run(self, step: EngineStep, reached: Reached | None = None) -> StepOutput:
        """Compute a step; ``reached`` is called on the way, see ``Executor``.

        Raises:
            ConfigError: a request has stop texts and the executor no tokenizer.
        """
        start_ns = time.perf_counter_ns()
        for request_id in step.gone:
            self._requests.pop(request_id, None)
        for new in step.new:
            self._requests[new.request_id] = _Request(
                new, self._decoder.spec.eos_token_ids, self._decode_text
            )
        for scheduled in step.scheduled:
            self._requests[scheduled.request_id].extend_table(scheduled)
        ids = self._compute(step, reached) if step.scheduled else {}
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        tokens, failed = self._take(step.scheduled, ids)
        return StepOutput(tokens, time.perf_counter_ns() - start_ns, failed)

    def _compute(self, step: EngineStep, reached: Reached | None) -> dict[int, int]:
        """Return the token that each request samples; nothing is taken yet, so it can run again."""
        # Decodes first, by falling context; the output goes back to the order of the step.
        order = sorted(step.scheduled, key=lambda part: (part.num_tokens > 1, -part.first))
        sampled, logits = self._logits(order, step.layer_ends, reached)
        if logits is None:
            return {}
        draws = [self._requests[part.request_id].next_draw() for part in sampled]
        ids = sample(logits, draws)
        return {part.request_id: i for part, i in zip(sampled, ids, strict=True)}

    def _take(
        self, scheduled: Sequence[ScheduledTokens], ids: Mapping[int, int]
    ) -> tuple[tuple[SampledToken, ...], tuple[FailedRequest, ...]]:
        """Append the sampled tokens; a request whose text cannot be told fails alone."""
        tokens: list[SampledToken] = []
        failed: list[FailedRequest] = []
        for part in scheduled:
            if not part.samples:
                continue
            try:
                tokens.append(self._requests[part.request_id].take(ids[part.request_id]))
            except Exception as error:  # noqa: BLE001 - a tokenizer's; others must not take twice
                failed.append(FailedRequest(part.request_id, repr(error)))
        return tuple(tokens), tuple(failed)

    def _logits(
        self, order: Sequence[ScheduledTokens], layer_ends: Sequence[int], reached: Reached | None
    ) -> tuple[list[ScheduledTokens], Tensor | None]:
        """Return the parts that sample and their logits, a row each; None without any."""
        shares = [self._requests[part.request_id].share(part) for part in order]
        decodes_only = all(part.num_tokens == 1 and part.samples for part in order)
        if self._compiled is not None and decodes_only and not layer_ends:
            return list(order), self._compiled.logits(shares)
        batch = self._batches.build(shares)
        attention: Attention = PagedAttention(self.kv, batch)
        if layer_ends and reached is not None:
            attention = ReportingAttention(attention, layer_ends, reached)
        hidden = self._decoder.hidden(batch.token_ids, batch.positions, attention)
        ends = np.cumsum([part.num_tokens for part in order]) - 1
        rows = [int(end) for part, end in zip(order, ends, strict=True) if part.samples]
        if not rows:
            return [], None
        if len(rows) < hidden.shape[0]:
            hidden = hidden[torch.tensor(rows, device=self._device)]
        return [part for part in order if part.samples], self._decoder.logits(hidden)

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the KV cache of whole blocks of some layers, as bytes in wire order."""
        return self.kv.read_blocks(block_ids, first_layer, end_layer)

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Put bytes in wire order into whole blocks of some layers.

        Raises:
            ConfigError: there are more or fewer bytes than the blocks hold; nothing is written.
        """
        wanted = self.kv.layout.wire_bytes(len(block_ids), end_layer - first_layer)
        if data.nbytes != wanted:
            raise ConfigError(f"{data.nbytes} bytes for blocks of {wanted} bytes")
        self.kv.write_blocks(block_ids, first_layer, end_layer, data)

    def forget_requests(self) -> None:
        """Know no request any more."""
        self._requests.clear()


def kv_layout_of(
    spec: ModelSpec, weights: DecoderWeights, block_size: int, kv_dtype: str | None
) -> KvLayout:
    """Return the KV cache of a model in numbers.

    Raises:
        ConfigError: it cannot be stored in this dtype.
    """
    own_dtype = str(weights.embedding.dtype).removeprefix("torch.")
    if kv_dtype not in {None, "int8", own_dtype}:
        raise ConfigError(f"KV dtype {kv_dtype!r}", hint=f"Write int8 or {own_dtype}")
    return KvLayout(
        num_layers=spec.num_layers,
        block_size=block_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        kv_dtype=kv_dtype or own_dtype,
    )


class _Request:
    """What the executor knows of a request: all its token ids and where their K and V lie."""

    __slots__ = ("_eos", "_new", "_stops", "_table", "_tokens")

    def __init__(
        self,
        new: NewRequest,
        eos_token_ids: tuple[int, ...],
        decode_text: Callable[[Sequence[int]], str] | None,
    ) -> None:
        self._new = new
        self._tokens = [*new.prompt_ids, *new.output_ids]
        self._table: Ids = np.zeros(0, np.int64)
        sampling = new.sampling
        self._eos = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
        self._stops: StopTexts | None = None
        if sampling.stop:
            if decode_text is None:
                raise ConfigError(
                    "stop texts need a tokenizer, this model has none", hint="Use stop_token_ids"
                )
            self._stops = StopTexts(Detokenizer(decode_text), sampling.stop)
            for token_id in new.output_ids:
                self._stops.push(token_id)

    def extend_table(self, part: ScheduledTokens) -> None:
        """Append blocks from ``table_start`` on; what was known from there on is void."""
        if part.new_blocks or part.table_start < len(self._table):
            kept = self._table[: part.table_start]
            self._table = np.concatenate((kept, np.array(part.new_blocks, np.int64)))

    def share(self, part: ScheduledTokens) -> RequestShare:
        """Return the tokens and blocks of this request's part of a step."""
        end = part.first + part.num_tokens
        assert end <= len(self._tokens), f"request {part.request_id} has no token {end - 1} yet"
        return RequestShare(part.first, self._tokens[part.first : end], self._table)

    def next_draw(self) -> Draw:
        """Return how the next output token is sampled."""
        seed = self._new.sampling.seed
        index = len(self._tokens) - len(self._new.prompt_ids)
        return Draw(self._new.sampling, self._new.request_id if seed is None else seed, index)

    def take(self, token_id: int) -> SampledToken:
        """Append an output token, and say whether it is the last."""
        self._tokens.append(token_id)
        stopped = self._stops is not None and self._stops.push(token_id)
        finish: FinishReason | None = None
        if token_id in self._eos or stopped:
            finish = FinishReason.STOP
        elif len(self._tokens) - len(self._new.prompt_ids) >= self._new.sampling.max_tokens:
            finish = FinishReason.LENGTH
        return SampledToken(self._new.request_id, token_id, finish)
