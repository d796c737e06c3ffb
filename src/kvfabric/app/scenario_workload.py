"""The ``workload:`` section of a scenario: a trace file, or the parameters of a generator."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kvfabric.app.quantities import DurationNs, FrequencyHz, Section
from kvfabric.protocol.workload import Workload
from kvfabric.workload.arrivals import (
    Arrivals,
    ClosedLoop,
    ConstantArrivals,
    ConstantThink,
    ExponentialThink,
    GammaArrivals,
    PoissonArrivals,
    Think,
)
from kvfabric.workload.generator import GeneratorConfig, SharedPrefixes, generate
from kvfabric.workload.lengths import (
    ConstantLength,
    EmpiricalLength,
    Length,
    LognormalLength,
    UniformLength,
)
from kvfabric.workload.read import read_trace
from kvfabric.workload.rescale import speed_up, take_first, take_window

Count = Annotated[int, Field(ge=1)]


class TraceWorkload(Section):
    """Requests from a file: Mooncake JSONL or Azure CSV, plain, .gz or .xz."""

    kind: Literal["trace"]
    path: str | None = None
    format: Literal["mooncake", "azure"] | None = None
    on_bad_rows: Literal["refuse", "skip"] = "refuse"
    limit: Count | None = None
    start: DurationNs | None = None
    duration: DurationNs | None = None
    speedup: Annotated[float, Field(gt=0)] = 1.0

    def read(self, path: Path, max_model_len: int | None) -> Workload:
        """Return the requests of the file, cut and compressed in time as asked."""
        workload = read_trace(
            path,
            trace_format=self.format,
            on_bad_rows=self.on_bad_rows,
            max_model_len=max_model_len,
        )
        if self.start is not None or self.duration is not None:
            workload = take_window(workload, self.start or 0, self.duration)
        if self.limit is not None:
            workload = take_first(workload, self.limit)
        return workload if self.speedup == 1.0 else speed_up(workload, self.speedup)


class _Closed(Section):
    kind: Literal["closed_loop"]
    users: Count

    def build(self) -> Arrivals:
        return ClosedLoop(self.users)


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


_Arrivals = Annotated[_Closed | _Poisson | _Constant | _Gamma, Field(discriminator="kind")]
_Lengths = Annotated[
    _ConstantLength | _UniformLength | _LognormalLength | _EmpiricalLength,
    Field(discriminator="kind"),
]
_Thinks = Annotated[_ConstantThink | _ExponentialThink, Field(discriminator="kind")]


class GeneratedWorkload(Section):
    """Requests from a few numbers and the seed; see ``workload.generator``."""

    kind: Literal["generated"]
    arrivals: _Arrivals
    prompt: _Lengths
    output: _Lengths
    turns: _Lengths | None = None
    think: _Thinks | None = None
    prefixes: _Prefixes | None = None
    requests: Count | None = None
    duration: DurationNs | None = None
    hash_block_tokens: Count = 64

    def generate(self, seed: int) -> Workload:
        """Return the requests."""
        prefixes = None
        if self.prefixes is not None:
            prefixes = SharedPrefixes(
                self.prefixes.groups, self.prefixes.tokens, self.prefixes.zipf_exponent
            )
        config = GeneratorConfig(
            arrivals=self.arrivals.build(),
            prompt=self.prompt.build(),
            output=self.output.build(),
            turns=ConstantLength(1) if self.turns is None else self.turns.build(),
            think=ConstantThink(0) if self.think is None else self.think.build(),
            prefixes=prefixes,
            num_requests=self.requests,
            duration_ns=self.duration,
            hash_block_tokens=self.hash_block_tokens,
        )
        return generate(config, seed)
