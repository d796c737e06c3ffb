"""One layer of routed experts from measured times, and how tokens spread over the experts."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from kvfabric.errors import ConfigError
from kvfabric.perf.curve import Curve
from kvfabric.perf.work import expert_shares
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import ceil_div

_WHOLE = 1 << 64
_UNIFORM = Source(SourceKind.ASSUMED, "uniform, independent routing")


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """Time of one layer of routed experts on one rank, its router included.

    Attributes:
        activated: numbers of distinct experts reached on the rank, ascending.
        curves: time in fs by tokens, one curve per entry of ``activated``.
        num_shards: ranks over which the experts were spread when measured. With more than one,
            tokens are those of all ranks together; with one, a rank of several is looked up with
            its share of the tokens.
    """

    activated: tuple[int, ...]
    curves: tuple[Curve, ...]
    num_shards: int = 1

    def __post_init__(self) -> None:
        """Refuse tables without rows, and experts that do not ascend."""
        if not self.activated or len(self.activated) != len(self.curves):
            raise ConfigError("an expert table without rows", hint="Give one curve per count")
        if any(b <= a for a, b in pairwise(self.activated)) or self.activated[0] < 1:
            raise ConfigError(
                f"activated experts {list(self.activated)}", hint="Give counts from 1, ascending"
            )

    def at(self, num_tokens: int, num_activated: float) -> int:
        """Return the time in fs, linear in tokens and in experts; below the first count it holds.

        Source: bilinear, as LLMServingSim reads the same files (commit 5daddb2, MIT).
        """
        first = self.curves[0].at(num_tokens)
        if num_activated <= self.activated[0] or len(self.activated) == 1:
            return first
        i = min(bisect_right(self.activated, num_activated) - 1, len(self.activated) - 2)
        low, high = (self.curves[k].at(num_tokens) for k in (i, i + 1))
        share = (num_activated - self.activated[i]) / (self.activated[i + 1] - self.activated[i])
        return max(0, low + int((high - low) * share))


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """How many distinct experts a step reaches.

    Assumed uniform and independent: ``E * (1 - (1 - k / E) ** tokens)`` of E experts with k per
    token. Real routing is skewed and reaches fewer; ``measured`` replaces the assumption.

    Attributes:
        num_experts: routed experts of a layer.
        num_active: experts that one token uses.
        measured: ``(tokens, distinct experts)`` ascending, linear between; empty to assume.
        source: where ``measured`` comes from.
    """

    num_experts: int
    num_active: int
    measured: tuple[tuple[int, float], ...] = ()
    source: Source = _UNIFORM

    def __post_init__(self) -> None:
        """Refuse counts no model has, and measured points that do not ascend."""
        expert_shares(self.num_experts, self.num_active)
        tokens = [point[0] for point in self.measured]
        if any(b <= a for a, b in pairwise(tokens)) or any(
            not 0 < reached <= self.num_experts for _, reached in self.measured
        ):
            raise ConfigError(
                f"measured routing {list(self.measured)[:3]}",
                hint=f"Give ascending tokens with 1 to {self.num_experts} experts",
            )

    def activated(self, num_tokens: int) -> float:
        """Return the expected number of distinct experts that this many tokens reach."""
        if not self.measured:
            shares = expert_shares(self.num_experts, self.num_active)
            return self.num_experts * shares[min(num_tokens, len(shares) - 1)] / _WHOLE
        sizes = [point[0] for point in self.measured]
        i = bisect_right(sizes, num_tokens) - 1
        if i < 0 or i == len(sizes) - 1:
            return self.measured[max(0, i)][1]
        (x0, y0), (x1, y1) = self.measured[i : i + 2]
        return y0 + (y1 - y0) * (num_tokens - x0) / (x1 - x0)


def expert_layer_fs(
    table: ExpertTable, routing: ExpertRouting, num_tokens: int, num_shards: int
) -> int:
    """Return the time of the routed experts of one layer on one of ``num_shards`` equal ranks.

    Every rank reaches an equal share of the experts. Experts cut across ranks (tensor parallel) are
    charged like experts placed on ranks (expert parallel): both read the same bytes and do the same
    products (derived).

    Args:
        table: measured on one rank of ``num_shards``, or on one rank with all experts.
        routing: how tokens spread.
        num_tokens: tokens of all ranks that share the experts, together.
        num_shards: ranks that share the experts.

    Raises:
        ConfigError: the table was measured for another number of ranks above 1.
    """
    activated = routing.activated(num_tokens) / num_shards
    if table.num_shards == num_shards:
        return table.at(num_tokens, activated)
    if table.num_shards != 1:
        raise ConfigError(
            f"experts measured on one of {table.num_shards} ranks, wanted one of {num_shards}",
            hint=f"Measure moe.csv for {num_shards} ranks, or for 1",
        )
    return table.at(ceil_div(num_tokens, num_shards), activated)
