"""When sessions begin and how long users think: arrival processes and pauses, in integer ns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvfabric.units import NS_PER_S, ceil_div
from kvfabric.workload.limits import MAX_NUM_REQUESTS, MAX_SPAN_NS, require_int, require_real

MIN_RATE_PER_S = 1e-4
MAX_RATE_PER_S = 1e9
_CHUNK = 1024

IntArray = npt.NDArray[np.int64]


def _require_rate(rate_per_s: float) -> None:
    require_real(rate_per_s, "rate_per_s", low=MIN_RATE_PER_S, high=MAX_RATE_PER_S)


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Independent sessions: exponential gaps with a mean of ``1 / rate_per_s``."""

    rate_per_s: float

    def __post_init__(self) -> None:
        """Refuse a rate that is not finite or out of range."""
        _require_rate(self.rate_per_s)


@dataclass(frozen=True, slots=True)
class ConstantArrivals:
    """One session every ``1 / rate_per_s``, the first at instant 0."""

    rate_per_s: float

    def __post_init__(self) -> None:
        """Refuse a rate that is not finite or out of range."""
        _require_rate(self.rate_per_s)


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Bursts: gamma-distributed gaps with a coefficient of variation ``cv`` (1 is Poisson)."""

    rate_per_s: float
    cv: float

    def __post_init__(self) -> None:
        """Refuse a rate or variation that is not finite or out of range."""
        _require_rate(self.rate_per_s)
        require_real(self.cv, "cv", low=0.01, high=20.0)


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """``size`` sessions at once every ``period_ns``, the first of them at instant 0."""

    size: int
    period_ns: int

    def __post_init__(self) -> None:
        """Refuse sizes and periods out of range, and more sessions than a rate may have."""
        require_int(self.size, "size", low=1, high=MAX_NUM_REQUESTS)
        require_int(self.period_ns, "period_ns", low=1, high=MAX_SPAN_NS)
        require_real(
            self.rate_per_s, "size / period_ns, per s", low=MIN_RATE_PER_S, high=MAX_RATE_PER_S
        )

    @property
    def rate_per_s(self) -> float:
        """Return the mean rate."""
        return self.size * NS_PER_S / self.period_ns


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of users; each sends again only after an answer and a pause.

    Attributes:
        num_users: requests open or paused at any time, once all users have begun.
        ramp_up_ns: the users begin evenly over this time; 0 lets all begin at once, each in the
            middle of a pause.
    """

    num_users: int
    ramp_up_ns: int = 0

    def __post_init__(self) -> None:
        """Refuse a number of users below one and a ramp without end."""
        require_int(self.num_users, "num_users", low=1, high=MAX_NUM_REQUESTS)
        require_int(self.ramp_up_ns, "ramp_up_ns", low=0, high=MAX_SPAN_NS)


OpenArrivals = PoissonArrivals | ConstantArrivals | GammaArrivals | BurstArrivals
Arrivals = OpenArrivals | ClosedLoop


@dataclass(frozen=True, slots=True)
class ConstantThink:
    """Every pause lasts ``think_ns``."""

    think_ns: int

    def __post_init__(self) -> None:
        """Refuse a negative or endless pause."""
        require_int(self.think_ns, "think_ns", low=0, high=MAX_SPAN_NS)


@dataclass(frozen=True, slots=True)
class ExponentialThink:
    """Exponential pauses with a mean of ``mean_ns``."""

    mean_ns: int

    def __post_init__(self) -> None:
        """Refuse a negative or endless pause."""
        require_int(self.mean_ns, "mean_ns", low=0, high=MAX_SPAN_NS // 100)


Think = ConstantThink | ExponentialThink


def draw_arrivals_ns(arrivals: OpenArrivals, rng: np.random.Generator, count: int) -> list[int]:
    """Return the first ``count`` instants, ascending, from instant 0."""
    if isinstance(arrivals, ConstantArrivals):
        return [round(idx * NS_PER_S / arrivals.rate_per_s) for idx in range(count)]
    if isinstance(arrivals, BurstArrivals):
        return [idx // arrivals.size * arrivals.period_ns for idx in range(count)]
    return [int(instant) for instant in np.cumsum(_gap_source(arrivals, rng)(count))]


def draw_arrivals_until_ns(
    arrivals: OpenArrivals, rng: np.random.Generator, duration_ns: int
) -> list[int]:
    """Return all instants in ``[0, duration_ns)``, ascending; starts like ``draw_arrivals_ns``."""
    if isinstance(arrivals, ConstantArrivals):
        most = int(duration_ns * arrivals.rate_per_s / NS_PER_S) + 2
        instants = draw_arrivals_ns(arrivals, rng, most)
    elif isinstance(arrivals, BurstArrivals):
        num_bursts = ceil_div(duration_ns, arrivals.period_ns)
        instants = draw_arrivals_ns(arrivals, rng, num_bursts * arrivals.size)
    else:
        instants = _instants_beyond(_gap_source(arrivals, rng), duration_ns)
    return [instant for instant in instants if instant < duration_ns]


def _gap_source(
    arrivals: PoissonArrivals | GammaArrivals, rng: np.random.Generator
) -> Callable[[int], IntArray]:
    """Return a function that draws the next gaps, in whole ns."""
    mean_ns = NS_PER_S / arrivals.rate_per_s
    # gamma gaps: mean = shape * scale and cv = 1 / sqrt(shape)
    shape = 1.0 if isinstance(arrivals, PoissonArrivals) else arrivals.cv**-2

    def draw(count: int) -> IntArray:
        if isinstance(arrivals, PoissonArrivals):
            units = rng.standard_exponential(count)
        else:
            units = rng.standard_gamma(shape, count) / shape
        return np.rint(mean_ns * units).astype(np.int64)

    return draw


def _instants_beyond(draw: Callable[[int], IntArray], duration_ns: int) -> list[int]:
    instants: list[int] = []
    last_ns = 0
    while last_ns < duration_ns:
        instants.extend(int(instant) for instant in last_ns + np.cumsum(draw(_CHUNK)))
        last_ns = instants[-1]
    return instants


def draw_thinks_ns(think: Think, rng: np.random.Generator, count: int) -> list[int]:
    """Return ``count`` independent pauses."""
    if isinstance(think, ConstantThink):
        return [think.think_ns] * count
    return [round(think.mean_ns * unit) for unit in rng.standard_exponential(count).tolist()]
