"""Field types of scenario files: quantities are text with a unit, never bare numbers; names are
looked up at once, so that a mistake in one is told with its line.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic_core import PydanticCustomError

from kvfabric.app.models import is_catalog_name
from kvfabric.catalog.gpus import gpu
from kvfabric.catalog.models import model_config
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import BUILDERS
from kvfabric.units import (
    exact_duration_text,
    exact_rate_text,
    parse_bytes,
    parse_bytes_per_s,
    parse_duration_ns,
    parse_frequency_hz,
    parse_rate_bps,
)

T = TypeVar("T")


class Section(BaseModel):
    """A mapping of a scenario file: unknown keys are refused, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _parsed(parse: Callable[..., T]) -> Callable[[object], T]:
    """Let pydantic place the error, and keep the hint of ours."""

    def validate(value: object) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            raise as_mistake(error) from None

    return validate


def as_mistake(error: ConfigError, key: str = "") -> PydanticCustomError:
    """Return an error for pydantic to place; ``key`` is the key below that place, if any."""
    context = {"what": error.what, "hint": error.hint, "key": key}
    return PydanticCustomError("quantity", "{what}", context)


def _parse_positive_ns(value: object) -> int:
    duration_ns = parse_duration_ns(value)
    if duration_ns < 1:
        raise ConfigError(f"{value!r} is no time", hint="Write a duration above 0, such as '50 ms'")
    return duration_ns


def _parse_bandwidth(value: object) -> int:
    rate = parse_bytes_per_s(value)
    if rate < 1:
        raise ConfigError(
            f"{value!r} is no bandwidth", hint="Write a bandwidth above 0, such as '25 GB/s'"
        )
    return rate


def _parse_size(value: object) -> int:
    num_bytes = parse_bytes(value)
    if num_bytes < 1:
        raise ConfigError(f"{value!r} is no size", hint="Write a size above 0, such as '1 TB'")
    return num_bytes


def _known_gpu(value: object) -> str:
    return gpu(_text(value)).name


def _known_model(value: object) -> str:
    """Return the name as it is: paths depend on the folder and are read later."""
    name = _text(value)
    if is_catalog_name(name):
        model_config(name)
    return name


def _known_kind(value: object) -> str:
    kind = _text(value)
    if kind not in BUILDERS:
        raise ConfigError(
            f"unknown kind of fabric {kind!r}", hint=f"Write one of {', '.join(BUILDERS)}"
        )
    return kind


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"read {value!r}", hint="Write a name")
    return value


RateBps = Annotated[
    int,
    BeforeValidator(_parsed(parse_rate_bps)),
    PlainSerializer(exact_rate_text, when_used="json"),
]
BytesPerS = Annotated[
    int,
    BeforeValidator(_parsed(_parse_bandwidth)),
    PlainSerializer(lambda rate: f"{rate} B/s", return_type=str, when_used="json"),
]
SizeBytes = Annotated[
    int,
    BeforeValidator(_parsed(_parse_size)),
    PlainSerializer(lambda size: f"{size} B", return_type=str, when_used="json"),
]
DurationNs = Annotated[
    int,
    BeforeValidator(_parsed(parse_duration_ns)),
    PlainSerializer(exact_duration_text, when_used="json"),
]
FrequencyHz = Annotated[
    float,
    BeforeValidator(_parsed(parse_frequency_hz)),
    PlainSerializer(lambda rate: f"{rate:.17g} /s", return_type=str, when_used="json"),
]
PositiveNs = Annotated[
    int,
    BeforeValidator(_parsed(_parse_positive_ns)),
    PlainSerializer(exact_duration_text, when_used="json"),
]
GpuName = Annotated[str, BeforeValidator(_parsed(_known_gpu))]
ModelName = Annotated[str, BeforeValidator(_parsed(_known_model))]
KindName = Annotated[str, BeforeValidator(_parsed(_known_kind))]
