"""The ``perf:`` section of a scenario: where step times come from."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from kvfabric.app.quantities import BytesPerS, DurationNs, Section, as_mistake
from kvfabric.errors import ConfigError
from kvfabric.perf.collectives import PRESETS

Count = Annotated[int, Field(ge=1)]


class RooflinePerf(Section):
    """Data-sheet peaks with stated efficiencies."""

    kind: Literal["roofline"] = "roofline"


def _known_preset(name: str) -> str:
    known = list(dict.fromkeys(preset for preset, _ in PRESETS))
    if name not in known:
        what, hint = f"unknown collectives {name!r}", f"Write one of {', '.join(known)}"
        raise as_mistake(ConfigError(what, hint=f"{hint}, or alpha, bus_bandwidth and source"))
    return name


class Collectives(Section):
    """An all-reduce as a start and a bandwidth, with their source."""

    alpha: DurationNs
    bus_bandwidth: BytesPerS
    source: str


def _is_name(value: object) -> str:
    return "name" if isinstance(value, str) else "section"


_NameOrSection = Annotated[
    Annotated[str, AfterValidator(_known_preset), Tag("name")]
    | Annotated[Collectives, Tag("section")],
    Discriminator(_is_name),
]


class ProfilePerf(Section):
    """Operators measured on the GPU, added up with nothing fitted."""

    kind: Literal["profile"]
    path: str | None = None
    collectives: _NameOrSection | None = None
    data_parallel: Count = 1
    captured: Annotated[int, Field(ge=0, le=8192)] = 512
    host_request_time: DurationNs | None = None


class StepTimesPerf(Section):
    """Whole steps measured on the machine that serves, by ``kvfabric generate --record``."""

    kind: Literal["step-times"]
    path: str


class AicPerf(Section):
    """Whole steps as aiconfigurator-core adds them up from measured operators."""

    kind: Literal["aic"]
    model: str | None = None
    system: str | None = None
    backend: Literal["vllm", "sglang", "trtllm"] = "vllm"
    experts: Literal["tensor", "expert"] = "tensor"


Perf = Annotated[RooflinePerf | ProfilePerf | StepTimesPerf | AicPerf, Field(discriminator="kind")]
