"""The ``workload:`` section of a scenario: a trace file, or the parameters of a generator."""

from pathlib import Path
from typing import Annotated, Literal, Protocol, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from kvfabric.app.quantities import (
    DurationNs,
    FrequencyHz,
    PositiveNs,
    Section,
    as_mistake,
)
from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import Workload
from kvfabric.workload.arrivals import (
    Arrivals,
    BurstArrivals,
    ClosedLoop,
    ConstantArrivals,
    ConstantThink,
    ExponentialThink,
    GammaArrivals,
    PoissonArrivals,
    Think,
)
from kvfabric.workload.cold_prompts import ColdPrompts
from kvfabric.workload.generator import GeneratorConfig, SharedPrefixes, generate
from kvfabric.workload.lengths import (
    ConstantLength,
    EmpiricalLength,
    Length,
    LognormalLength,
    UniformLength,
)
from kvfabric.workload.read import read_trace, trace_format_of
from kvfabric.workload.recorded_run import MeasuredRequest, read_recorded_run
from kvfabric.workload.rescale import speed_up, take_first, take_window

Count = Annotated[int, Field(ge=1)]
Measured = tuple[MeasuredRequest, ...]
MAX_SPEEDUP = 1e6

# What the records of ``workload`` call the keys of a scenario.
_KEYS = {
    "rate_per_s": "rate",
    "num_users": "users",
    "ramp_up_ns": "ramp_up",
    "period_ns": "period",
    "size / period_ns, per s": "period",
    "value": "tokens",
    "num_groups": "groups",
    "prefix_tokens": "tokens",
    "think_ns": "time",
    "mean_ns": "mean",
    "num_requests": "requests",
    "duration_ns": "duration",
}


class TraceWorkload(Section):
    """Requests from a file: a trace or a recorded run, plain, .gz or .xz."""

    kind: Literal["trace"]
    path: str | None = None
    format: Literal["mooncake", "azure", "burstgpt", "recorded_run"] | None = None
    on_bad_rows: Literal["refuse", "skip"] = "refuse"
    limit: Count | None = None
    start: DurationNs | None = None
    duration: PositiveNs | None = None
    speedup: Annotated[float, Field(gt=0, le=MAX_SPEEDUP)] = 1.0

    def read(self, path: Path, max_model_len: int | None) -> tuple[Workload, Measured]:
        """Return the requests of the file, cut and compressed in time as asked.

        With them what a real engine did with them, if the file says so and its time is left as it
        was.
        """
        workload, measured = self._read(path, max_model_len)
        if self.start is not None or self.duration is not None:
            workload = take_window(workload, self.start or 0, self.duration)
        if self.limit is not None:
            workload = take_first(workload, self.limit)
        if self.speedup == 1.0:
            return workload, measured
        return speed_up(workload, self.speedup), ()

    def _read(self, path: Path, max_model_len: int | None) -> tuple[Workload, Measured]:
        if trace_format_of(path, self.format) == "recorded_run":
            run = read_recorded_run(path, on_bad_rows=self.on_bad_rows, max_model_len=max_model_len)
            return run.workload, run.measured
        workload = read_trace(
            path,
            trace_format=self.format,
            on_bad_rows=self.on_bad_rows,
            max_model_len=max_model_len,
        )
        return workload, ()


class _Closed(Section):
    kind: Literal["closed_loop"]
    users: Count
    ramp_up: DurationNs | None = None

    def build(self) -> Arrivals:
        return ClosedLoop(self.users, self.ramp_up or 0)


class _Poisson(Section):
    kind: Literal["poisson"]
    rate: FrequencyHz

    def build(self) -> Arrivals:
        return PoissonArrivals(self.rate)


class _Constant(Section):
    kind: Literal["constant"]
    rate: FrequencyHz

    def build(self) -> Arrivals:
        return ConstantArrivals(self.rate)


class _Gamma(Section):
    kind: Literal["gamma"]
    rate: FrequencyHz
    cv: float

    def build(self) -> Arrivals:
        return GammaArrivals(self.rate, self.cv)


class _Bursts(Section):
    kind: Literal["bursts"]
    size: Count
    period: PositiveNs

    def build(self) -> Arrivals:
        return BurstArrivals(self.size, self.period)


class _ConstantLength(Section):
    kind: Literal["constant"]
    tokens: Count

    def build(self) -> Length:
        return ConstantLength(self.tokens)


class _UniformLength(Section):
    kind: Literal["uniform"]
    minimum: Count
    maximum: Count

    def build(self) -> Length:
        return UniformLength(self.minimum, self.maximum)


class _LognormalLength(Section):
    kind: Literal["lognormal"]
    median: Count
    sigma: float
    minimum: Count = 1
    maximum: Count = 10**7

    def build(self) -> Length:
        return LognormalLength(self.median, self.sigma, self.minimum, self.maximum)


class _EmpiricalLength(Section):
    kind: Literal["empirical"]
    values: list[Count]

    def build(self) -> Length:
        return EmpiricalLength(tuple(self.values))


class _ConstantThink(Section):
    kind: Literal["constant"]
    time: DurationNs

    def build(self) -> Think:
        return ConstantThink(self.time)


class _ExponentialThink(Section):
    kind: Literal["exponential"]
    mean: DurationNs

    def build(self) -> Think:
        return ExponentialThink(self.mean)


class _Prefixes(Section):
    groups: Count
    tokens: Count
    zipf_exponent: float = 1.0

    def build(self) -> SharedPrefixes:
        return SharedPrefixes(self.groups, self.tokens, self.zipf_exponent)


class _Part(Protocol):
    def build(self) -> object: ...


_P = TypeVar("_P", bound=_Part)


def _checked(part: _P) -> _P:
    """Build the part once while the file is read, so that pydantic can place its mistakes."""
    try:
        part.build()
    except ConfigError as error:
        raise as_mistake(error, _KEYS.get(error.where, error.where)) from None
    return part


_Arrivals = Annotated[
    _Closed | _Poisson | _Constant | _Gamma | _Bursts,
    Field(discriminator="kind"),
    AfterValidator(_checked),
]
_Lengths = Annotated[
    _ConstantLength | _UniformLength | _LognormalLength | _EmpiricalLength,
    Field(discriminator="kind"),
    AfterValidator(_checked),
]
_Thinks = Annotated[
    _ConstantThink | _ExponentialThink, Field(discriminator="kind"), AfterValidator(_checked)
]


class _Cold(Section):
    share: float
    prompt: _Lengths | None = None

    def build(self) -> ColdPrompts:
        return ColdPrompts(self.share, None if self.prompt is None else self.prompt.build())


class GeneratedWorkload(Section):
    """Requests from a few numbers and the seed; see ``workload.generator``."""

    kind: Literal["generated"]
    arrivals: _Arrivals
    prompt: _Lengths
    output: _Lengths
    turns: _Lengths | None = None
    think: _Thinks | None = None
    prefixes: Annotated[_Prefixes, AfterValidator(_checked)] | None = None
    cold: Annotated[_Cold, AfterValidator(_checked)] | None = None
    requests: Count | None = None
    duration: PositiveNs | None = None
    hash_block_tokens: Count = 64
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.requests is None) == (self.duration is None):
            which = "neither" if self.requests is None else "both"
            raise as_mistake(
                ConfigError(f"{which} of requests and duration given", hint="Write one of the two")
            )
        try:
            self._config()
        except ConfigError as error:
            raise as_mistake(error, _KEYS.get(error.where, error.where)) from None
        return self

    def generate(self, seed: int) -> Workload:
        """Return the requests.

        Raises:
            ConfigError: no session begins within the duration, or too much for the memory.
        """
        try:
            return generate(self._config(), seed)
        except ConfigError as error:
            key = _KEYS.get(error.where, error.where)
            where = key if key == "seed" else f"workload.{key}"
            raise ConfigError(error.what, where=where, hint=error.hint) from None

    def _config(self) -> GeneratorConfig:
        return GeneratorConfig(
            arrivals=self.arrivals.build(),
            prompt=self.prompt.build(),
            output=self.output.build(),
            turns=ConstantLength(1) if self.turns is None else self.turns.build(),
            think=ConstantThink(0) if self.think is None else self.think.build(),
            prefixes=None if self.prefixes is None else self.prefixes.build(),
            cold=None if self.cold is None else self.cold.build(),
            num_requests=self.requests,
            duration_ns=self.duration,
            hash_block_tokens=self.hash_block_tokens,
            ignore_eos=self.ignore_eos,
        )
