"""The fabrics and policies that a scenario names, to compare or to choose from."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from kvfabric.app.quantities import KindName, Section, as_mistake
from kvfabric.errors import ConfigError

Count = Annotated[int, Field(ge=1)]

PolicyName = Literal[
    "ecmp", "flowlet", "spray", "dmodk", "path-source", "path-destination", "assigned"
]


class FabricKind(Section):
    """One fabric to compare, where its name alone does not say enough."""

    kind: KindName
    label: str | None = None
    radix: Count | None = None
    tiers: Count | None = None
    oversubscription: Annotated[float, Field(gt=0)] = 1.0
    shape: Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(default_factory=dict)]
    failures: Annotated[list[str], Field(default_factory=list)]
    cables: Literal["planned", "placed", "placed-aoc"] = "planned"


def _is_name(value: object) -> str:
    return "name" if isinstance(value, str) else "section"


NameOrSection = Annotated[
    Annotated[KindName, Tag("name")] | Annotated[FabricKind, Tag("section")],
    Discriminator(_is_name),
]


def _distinct(policies: list[str]) -> list[str]:
    for policy in policies:
        if policies.count(policy) > 1:
            raise as_mistake(ConfigError(f"{policy!r} stands twice", hint="Write each policy once"))
    return policies


FabricKinds = Annotated[list[NameOrSection], Field(min_length=1)]
Policies = Annotated[list[PolicyName], Field(min_length=1), AfterValidator(_distinct)]
