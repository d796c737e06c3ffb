"""Step times added up from a measured operator profile, with nothing fitted.

A step of t tokens and r requests on a model of L layers takes::

    once(t') + L * layer(t') + L * attention + head(r) + collectives(t', r)

where t' is t padded to the size of a captured CUDA graph, ``once`` the embedding and last norm,
``layer`` all of a layer but its attention (two norms), and ``head`` runs for every request in the
step. Attention is one look-up for the whole step: prompt tokens, tokens cached before them,
decodes, and the mean context of the decodes.

Source: vLLM 0.19 computes logits of every scheduled request and pads to captured sizes; on the
recorded run of an RTX PRO 6000 (Llama-3.1-8B, LLMServingSim, MIT) the sum is 3.6 % below 2,376 real
steps. The operators are eager kernels: compiled graphs save up to 5 % of a full step.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.perf.collectives import CollectiveModel, gather_ns
from kvfabric.perf.curve import FS_PER_NS
from kvfabric.perf.joint_attention import DecodeBatch, JointAttention
from kvfabric.perf.moe import ExpertRouting, expert_layer_fs
from kvfabric.perf.profile_tables import (
    DENSE_MLP,
    ONCE,
    PER_LAYER,
    ProfiledModel,
    ProfileTables,
    require_operators,
)
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape


def capture_sizes(max_size: int = 512) -> tuple[int, ...]:
    """Return the token counts of the CUDA graphs that vLLM 0.19 captures, up to ``max_size``.

    vLLM takes ``min(512, 2 * max_num_seqs)``; the recorded configuration of the RTX 4090 run lists
    the 51 sizes up to 512.
    """
    every = (1, 2, 4, *range(8, 256, 8), *range(256, max_size + 1, 16))
    return tuple(size for size in every if size <= max_size)


CAPTURE_SIZES: Final = capture_sizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroups:
    """The ranks beside the one that was measured, and what talking to them takes.

    Data-parallel ranks run in lock-step, since they share the experts: assumed is that all of them
    carry as many tokens as this one, so that nobody waits. What a more loaded or an idle rank costs
    this one is not modelled.

    Attributes:
        tensor: collectives among the tensor-parallel ranks; None for one rank.
        num_data_ranks: data-parallel ranks that share the routed experts.
        data: collectives among those; None for one rank.
    """

    tensor: CollectiveModel | None = None
    num_data_ranks: int = 1
    data: CollectiveModel | None = None


class ProfileModel:
    """A ``StepTimeModel`` that follows its measurements, also where they fall as work grows.

    One step takes ``floor(fs / 10**6)`` ns. Decodes are affine in their summed context between two
    measured ones, so that the sum of a run is exact. Slopes are integer fs per token, rounded
    towards 0: nothing at measured points, and at most 1 fs per token of context above one.
    """

    def __init__(
        self,
        tables: ProfileTables,
        model: ProfiledModel,
        *,
        ranks: RankGroups | None = None,
        routing: ExpertRouting | None = None,
        captured: Sequence[int] = CAPTURE_SIZES,
        host_request_ns: int = 0,
    ) -> None:
        """Check that everything the model needs was measured or given.

        Args:
            tables: measured times of one rank.
            model: sizes of the whole model.
            ranks: the other ranks and their collectives; needed with more than one.
            routing: how tokens reach experts; uniform by default.
            captured: token counts of captured CUDA graphs, ascending; empty for no padding.
            host_request_ns: visible host time per request in the step. The default 0 is the
                uncalibrated model; any other value makes it a calibrated one, and its source says
                so.

        Raises:
            ConfigError: collectives that are missing or of another size, operators that are not
                there, experts without table.
        """
        self._ranks = ranks or RankGroups()
        _check_ranks(tables, self._ranks)
        _check_mlp(tables, model)
        self._tables, self._model = tables, model
        self._routing = routing
        if routing is None and model.num_expert_layers:
            self._routing = ExpertRouting(model.num_experts, model.num_active_experts)
        self._captured = tuple(captured)
        self._host_request_ns = host_request_ns
        self._attention = JointAttention(tables.attention, model.num_layers)
        self._tokens_fs: dict[int, int] = {}
        self._requests_fs: dict[int, int] = {}
        self._batches: dict[int, DecodeBatch] = {}

    @property
    def source(self) -> Source:
        """Return where the numbers come from."""
        found, parts = self._tables.source, [self._tables.source.text]
        parts += [
            f"{name} collectives {model.source}"
            for name, model in (("tensor", self._ranks.tensor), ("data", self._ranks.data))
            if model is not None
        ]
        if self._routing is not None:
            parts.append(f"routing {self._routing.source}")
        if self._ranks.num_data_ranks > 1:
            parts.append("data-parallel ranks equally loaded (assumed)")
        if self._host_request_ns:
            parts.append(f"calibrated: {self._host_request_ns} ns of host time per request")
        is_measured = len(parts) == 1
        kind = found.kind if is_measured else SourceKind.DERIVED
        return Source(kind, "; ".join(parts), found.date)

    def mixed_step_ns(self, shape: StepShape) -> int:
        """Return the duration of one step; 0 for a step without work."""
        num_decodes, prefill = shape.num_decodes, shape.prefill
        chunk = history = 0
        for num_tokens, num_history in prefill:
            chunk += num_tokens
            history += num_history
        if not chunk:
            return self.decode_run_ns(num_decodes, shape.context_tokens, 1)
        num_requests = num_decodes + len(prefill)
        linear_fs = self._linear_fs(chunk + num_decodes, num_requests)
        mean = shape.context_tokens / num_decodes if num_decodes else 0
        attention_fs = self._attention.joint_fs(chunk, history, num_decodes, mean)
        return max(1, (linear_fs + int(attention_fs)) // FS_PER_NS)

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        """Return the exact sum of ``mixed_step_ns`` over consecutive decode iterations."""
        if num_decodes == 0:
            return 0
        batch = self._batches.get(num_decodes) or self._batch(num_decodes)
        if num_iterations == 1:
            return batch.step_ns(context_tokens)
        return batch.run_ns(context_tokens, num_iterations)

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        """Return the least j in [1, max_iterations] with ``decode_run_ns(j) >= elapsed_ns``.

        Returns ``max_iterations`` when even that many are done sooner.
        """
        if num_decodes == 0:
            return max_iterations if elapsed_ns > 0 else 1
        batch = self._batches.get(num_decodes) or self._batch(num_decodes)
        return batch.iterations_until(context_tokens, elapsed_ns, max_iterations)

    def _batch(self, num_decodes: int) -> DecodeBatch:
        linear_fs = max(FS_PER_NS, self._linear_fs(num_decodes, num_decodes))
        batch = self._attention.decode_batch(num_decodes, linear_fs)
        self._batches[num_decodes] = batch
        return batch

    def _linear_fs(self, num_tokens: int, num_requests: int) -> int:
        """Return all of a step but attention."""
        tokens_fs = self._tokens_fs.get(num_tokens)
        if tokens_fs is None:
            tokens_fs = self._tokens_fs[num_tokens] = self._token_part_fs(num_tokens)
        requests_fs = self._requests_fs.get(num_requests)
        if requests_fs is None:
            requests_fs = self._requests_fs[num_requests] = self._request_part_fs(num_requests)
        return tokens_fs + requests_fs

    def _token_part_fs(self, num_tokens: int) -> int:
        tables, model = self._tables.tokens, self._model
        padded = self._padded(num_tokens)
        num_dense = model.num_layers - model.num_expert_layers
        once = sum(tables[name].at(padded) for name in ONCE)
        layer = sum(n * tables[name].at(padded) for name, n in PER_LAYER.items() if name in tables)
        total = once + model.num_layers * layer
        if num_dense:
            total += num_dense * sum(tables[name].at(padded) for name in DENSE_MLP)
        if model.num_expert_layers:
            total += model.num_expert_layers * self._experts_fs(padded)
        if self._ranks.tensor is not None:
            row = model.hidden_size * model.dtype_bytes
            # Partial sums of the vocabulary-parallel embedding, of attention and of feed-forward.
            num_reduces = 1 + 2 * model.num_layers
            total += num_reduces * self._ranks.tensor.all_reduce_ns(padded * row) * FS_PER_NS
        return total

    def _request_part_fs(self, num_requests: int) -> int:
        model = self._model
        total = sum(curve.at(num_requests) for curve in self._tables.requests.values())
        total += num_requests * self._host_request_ns * FS_PER_NS
        if self._ranks.tensor is not None:
            logits = num_requests * model.vocab_size * model.dtype_bytes
            total += gather_ns(self._ranks.tensor, logits) * FS_PER_NS
        return total

    def _experts_fs(self, padded: int) -> int:
        """Return one layer of routed experts with the exchange among data-parallel ranks.

        Ranks gather the tokens and router logits of all, compute their share of the experts, and
        scatter the sums (vLLM 0.19, all2all_backend allgather_reducescatter, its default).
        """
        assert self._tables.experts is not None, "checked by the constructor"
        assert self._routing is not None, "set by the constructor"
        model, num_data_ranks = self._model, self._ranks.num_data_ranks
        gathered = padded * num_data_ranks
        shards = self._tables.tp * num_data_ranks
        total = expert_layer_fs(self._tables.experts, self._routing, gathered, shards)
        if self._ranks.data is not None:
            rows = gathered * model.dtype_bytes
            dispatch_ns = gather_ns(
                self._ranks.data, rows * (model.hidden_size + model.num_experts)
            )
            combine_ns = gather_ns(self._ranks.data, rows * model.hidden_size)
            total += (dispatch_ns + combine_ns) * FS_PER_NS
        return total

    def _padded(self, num_tokens: int) -> int:
        i = bisect_left(self._captured, num_tokens)
        return self._captured[i] if i < len(self._captured) else num_tokens


def _check_ranks(tables: ProfileTables, ranks: RankGroups) -> None:
    for name, wanted, model in (
        ("tensor", tables.tp, ranks.tensor),
        ("data", ranks.num_data_ranks, ranks.data),
    ):
        if wanted < 1:
            raise ConfigError(f"{wanted} {name}-parallel ranks", hint="Write a count from 1")
        given = 1 if model is None else model.num_ranks
        if given != wanted:
            raise ConfigError(
                f"{wanted} {name}-parallel ranks, but collectives among {given}"
                if model
                else f"{wanted} {name}-parallel ranks and no cost of their collectives",
                hint=f"Give a collective model of {wanted} ranks with its source"
                if wanted > 1
                else "Leave the collective model out",
            )


def _check_mlp(tables: ProfileTables, model: ProfiledModel) -> None:
    if model.num_expert_layers < model.num_layers:
        require_operators(tables.tokens, DENSE_MLP)
    if model.num_expert_layers and tables.experts is None:
        raise ConfigError(
            f"{model.num_expert_layers} layers with routed experts and no measured ones",
            hint="Add moe.csv to the profile",
        )
