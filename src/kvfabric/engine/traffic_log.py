"""What a server keeps of its traffic to tell how long its steps and transfers take."""

from typing import Any, Final

from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.decision_log import NEVER_NS, DecisionLog
from kvfabric.engine.profile_in_place import fit_step_times
from kvfabric.perf.step_times import StepTimes
from kvfabric.protocol.provenance import Source

MOST_KEPT: Final = 100_000  # steps, and as many transfers: the newest
_NUM_CHUNKS: Final = 8


class _Unkept(list[Any]):
    """A list that stays empty."""

    def append(self, item: object) -> None:
        """Let it go."""
        del item


class _UnkeptByKey(dict[int, Any]):
    """A dictionary that stays empty."""

    def __setitem__(self, key: int, value: object) -> None:
        """Let it go."""
        del key, value


class TrafficLog(DecisionLog):
    """The newest steps and transfers of a run, and nothing of its requests."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        """Keep up to twice as many of each, and then the newest half."""
        super().__init__(
            lines=_Unkept(),
            arrivals=_Unkept(),
            cancels=_Unkept(),
            broken=_Unkept(),
            lost=_Unkept(),
            joined=_Unkept(),
            records=_Unkept(),
            all_hashes=_UnkeptByKey(),
            num_produced=_UnkeptByKey(),
        )
        self._most_kept = most_kept

    def add_step(self, *step: Any, **more: Any) -> None:
        """Add a step; see ``DecisionLog.add_step``."""
        super().add_step(*step, **more)
        if len(self.steps) > 2 * self._most_kept:
            del self.steps[: self._most_kept]
        if len(self.transfers) > 2 * self._most_kept:
            for transfer_id in list(self.transfers)[: self._most_kept]:
                del self.transfers[transfer_id]
                self.transfer_bytes.pop(transfer_id, None)


def step_times_of(log: DecisionLog, settings: ClusterSettings, source: Source) -> StepTimes:
    """Return step times fitted to what a cluster has run, over the sizes that came up.

    Raises:
        ConfigError: it has run too few steps of one kind.
    """
    shapes = [step.shape for step in log.steps if step.end_ns != NEVER_NS]
    batch = max((shape.num_decodes for shape in shapes), default=1)
    context = max((s.context_tokens // s.num_decodes for s in shapes if s.num_decodes), default=1)
    parts = [part for shape in shapes for part in shape.prefill]
    chunk = max((sum(n for n, _ in s.prefill) for s in shapes if s.prefill), default=1)
    history = max((before for _, before in parts), default=0)
    chunk = max(chunk, _NUM_CHUNKS)
    return fit_step_times(
        log,
        settings,
        batches=(1, max(2, batch)),
        contexts=(1, max(2, context)),
        chunks=[chunk * i // _NUM_CHUNKS for i in range(1, _NUM_CHUNKS + 1)],
        histories=(0, max(1, history)),
        source=source,
    )
