"""Step times of a worker whose prompts are split over context-parallel ranks."""

from kvfabric.errors import ConfigError
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape
from kvfabric.units import ceil_div


class ContextParallelSteps:
    """The compute time of a prefill step of which every rank does an equal share.

    A rank computes ``ceil(tokens / ranks)`` tokens of a chunk. Head and tail pieces are paired, so
    that every rank has the same number of query-key pairs: as many as its tokens have behind a
    history of ``history + (tokens - share) / 2``. What ranks exchange is not in here: the driver
    sends it over the network (``context_parallel.step_traffic``).

    Does not model decodes: their cache would be split as well. A worker with context-parallel ranks
    is a prefill worker.
    """

    def __init__(self, steps: StepTimeModel, num_ranks: int) -> None:
        """Share the work that ``steps`` times over ``num_ranks`` ranks."""
        if num_ranks < 1:
            raise ConfigError(f"{num_ranks} context-parallel ranks", hint="Write 1 rank or more")
        self._steps = steps
        self._num_ranks = num_ranks

    @property
    def source(self) -> Source:
        """Return where the numbers come from."""
        if self._num_ranks == 1:
            return self._steps.source
        return Source(
            SourceKind.DERIVED,
            f"{self._steps.source.text}; prompts shared evenly by {self._num_ranks}"
            " context-parallel ranks",
        )

    def mixed_step_ns(self, shape: StepShape) -> int:
        """Return the compute time of one step, without what the ranks exchange."""
        if self._num_ranks == 1:
            return self._steps.mixed_step_ns(shape)
        assert shape.num_decodes == 0, "context-parallel ranks decode"
        shares = tuple(self._share(*chunk) for chunk in shape.prefill)
        return self._steps.mixed_step_ns(StepShape(0, 0, shares))

    def _share(self, num_tokens: int, num_history_tokens: int) -> tuple[int, int]:
        share = ceil_div(num_tokens, self._num_ranks)
        return share, num_history_tokens + (num_tokens - share) // 2

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        """Return the time of decode iterations; only with a single rank."""
        assert self._num_ranks == 1, "context-parallel ranks decode"
        return self._steps.decode_run_ns(num_decodes, context_tokens, num_iterations)

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        """Return the iterations until an instant; only with a single rank."""
        assert self._num_ranks == 1, "context-parallel ranks decode"
        return self._steps.iterations_until(num_decodes, context_tokens, elapsed_ns, max_iterations)
