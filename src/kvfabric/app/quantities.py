"""Field types of scenario files: quantities are text with a unit, never bare numbers."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from kvfabric.errors import ConfigError
from kvfabric.units import (
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
            context = {"what": error.what, "hint": error.hint}
            raise PydanticCustomError("quantity", "{what}", context) from None

    return validate


RateBps = Annotated[int, BeforeValidator(_parsed(parse_rate_bps))]
DurationNs = Annotated[int, BeforeValidator(_parsed(parse_duration_ns))]
FrequencyHz = Annotated[float, BeforeValidator(_parsed(parse_frequency_hz))]
