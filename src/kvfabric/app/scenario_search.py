"""The ``search:`` section of a scenario: what ``kvfabric search`` may vary."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from kvfabric.app.quantities import RateBps, Section, as_mistake
from kvfabric.app.scenario_fabric import FabricKinds, Policies
from kvfabric.errors import ConfigError

Count = Annotated[int, Field(ge=1)]


class GpuRange(Section):
    """Sizes of the fleet from the smallest to the largest."""

    minimum: Count = 8
    maximum: Count
    step: Count = 8

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.maximum < self.minimum:
            raise as_mistake(
                ConfigError(
                    f"maximum {self.maximum} is below minimum {self.minimum}",
                    hint="Write a range such as {minimum: 8, maximum: 64}",
                )
            )
        return self

    def values(self) -> tuple[int, ...]:
        """Return the sizes."""
        return tuple(range(self.minimum, self.maximum + 1, self.step))


def _is_list(value: object) -> str:
    return "list" if isinstance(value, list) else "range"


def _ratio(value: object) -> str:
    """Return a ratio as read; YAML takes 3:1 for a time, hence letters."""
    if not isinstance(value, str) or not re.fullmatch(r"[1-9]\d{0,5}P[1-9]\d{0,5}D", value):
        raise as_mistake(
            ConfigError(
                f"read {value!r}", hint="Write prefill and decode workers, such as 3P1D or 1P2D"
            )
        )
    return value


def _distinct(values: list[int]) -> list[int]:
    for value in values:
        if values.count(value) > 1:
            raise as_mistake(ConfigError(f"{value} stands twice", hint="Write each number once"))
    return values


Counts = Annotated[list[Count], Field(min_length=1), AfterValidator(_distinct)]
Gpus = Annotated[
    Annotated[Counts, Tag("list")] | Annotated[GpuRange, Tag("range")], Discriminator(_is_list)
]
Ratio = Annotated[str, BeforeValidator(_ratio)]
ModeName = Literal["disaggregated", "aggregated"]


class SearchSettings(Section):
    """What may vary; None takes it from the scenario's own fleet and fabric."""

    gpus: Gpus | None = None
    tp: Counts | None = None
    decode_tp: Counts | None = None
    ratios: Annotated[list[Ratio], Field(min_length=1)] | None = None
    modes: Annotated[list[ModeName], Field(min_length=1)] | None = None
    kinds: FabricKinds | None = None
    nic_rates: Annotated[list[RateBps], Field(min_length=1)] | None = None
    switches: Annotated[list[RateBps], Field(min_length=1)] | None = None
    load_balancing: Policies | None = None
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.99
    cost_limit: Annotated[float, Field(ge=1, le=100)] = 1.25
