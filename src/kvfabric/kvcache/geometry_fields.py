"""Typed reading of a model config; every refusal names the key and what was read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One config mapping and where it came from.

    A key that is absent and a key that is null mean the same: the model's own default.
    """

    values: Mapping[str, object]
    where: str

    def has(self, key: str) -> bool:
        """Return whether the key says something: present, and not null, false, zero or empty."""
        return bool(self.values.get(key))

    def integer(self, *keys: str) -> int:
        """Return the positive integer under the first of these keys that is set.

        Raises:
            ConfigError: none is set, or the value is not a whole number of at least 1.
        """
        number = self.integer_or_none(*keys)
        if number is None:
            raise ConfigError(
                f"key {keys[0]!r} is missing or null",
                where=self.where,
                hint=f"Add '{keys[0]}: <whole number>' from the model's config.json",
            )
        return number

    def integer_or_none(self, *keys: str) -> int | None:
        """Return the positive integer under the first key that is set, or None."""
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                return self.checked(key, value, least=1)
        return None

    def count(self, key: str, default: int = 0) -> int:
        """Return a whole number that may be zero."""
        value = self.values.get(key)
        return default if value is None else self.checked(key, value, least=0)

    def checked(self, key: str, value: object, *, least: int) -> int:
        """Return ``value`` when it is a whole number of at least ``least``."""
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{key!r} is {value!r}",
                where=self.where,
                hint=f"Write a whole number of at least {least}",
            )
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return the text under a key."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{key!r} is {value!r}", where=self.where, hint="Write a text")
        return value

    def sequence(self, key: str) -> tuple[object, ...]:
        """Return the list under a key."""
        value = self.values.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"{key!r} is {value!r}", where=self.where, hint="Write a list")
        return tuple(value)

    def per_layer(self, key: str, num_layers: int) -> tuple[object, ...]:
        """Return a list with one entry per layer."""
        entries = self.sequence(key)
        if len(entries) != num_layers:
            raise ConfigError(
                f"{key!r} has {len(entries)} entries for {num_layers} layers",
                where=self.where,
                hint="Write one entry per layer",
            )
        return entries

    def section(self, key: str) -> "ConfigFields":
        """Return the mapping under a key."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key!r} is {value!r}", where=self.where, hint="Write a mapping")
        return ConfigFields(value, f"{self.where}: {key}")

    @property
    def model_type(self) -> str:
        """Return the ``model_type``, or an empty text."""
        return self.text("model_type")

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the main model."""
        return self.integer("num_hidden_layers", "n_layer")

    @property
    def hidden_size(self) -> int:
        """Return the width of the residual stream."""
        return self.integer("hidden_size", "n_embd")

    @property
    def num_query_heads(self) -> int:
        """Return the number of query heads of a full-attention layer."""
        return self.integer("num_attention_heads", "n_head")

    @property
    def head_dim(self) -> int:
        """Return the elements of one key head: as given, else hidden size over query heads."""
        given = self.integer_or_none("head_dim", "attention_head_dim")
        return given if given is not None else self._derived_head_dim()

    def _derived_head_dim(self) -> int:
        head_dim, rest = divmod(self.hidden_size, self.num_query_heads)
        if rest:
            raise ConfigError(
                f"hidden size {self.hidden_size} is no multiple of {self.num_query_heads} heads",
                where=self.where,
                hint="Add 'head_dim' from the model's config.json",
            )
        return head_dim
