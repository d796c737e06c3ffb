"""Reads the fields of a JSON object; every refusal names the field and says what to write."""

import json
import math
from collections.abc import Mapping
from typing import Any

from kvfabric.engine.server.errors import ApiError


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object, or raise an ``ApiError`` with status 400."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"The body is not valid JSON: {reason[:200]}"
        raise ApiError(message, code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError('The body must be a JSON object, such as {"model": ..., "prompt": ...}.')
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


class Fields:
    """The fields of one object; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        """Read an object that stands at ``where``, a prefix such as ``stream_options.``."""
        self._values = values
        self._where = where

    def get(self, name: str) -> Any:
        """Return a value as it is, or None."""
        return self._values.get(name)

    def names(self) -> list[str]:
        """Return the names of the fields that are there."""
        return [name for name, value in self._values.items() if value is not None]

    def error(self, name: str, must_be: str) -> ApiError:
        """Return the error of a field that has the wrong value."""
        found = json.dumps(self._values.get(name))
        found = found if len(found) <= 60 else found[:57] + "..."
        name = self._where + name
        return ApiError(f"{name} must be {must_be}, not {found}.", param=name)

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.error(name, "a string")

    def flag(self, name: str) -> bool:
        """Return a boolean, false by default."""
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.error(name, "true or false")

    def integer(self, name: str, minimum: int, maximum: int) -> int | None:
        """Return a whole number within bounds."""
        value = self.get(name)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if is_whole and minimum <= value <= maximum:
            return int(value)
        raise self.error(name, f"a whole number from {minimum} to {maximum}")

    def number(self, name: str, minimum: float, maximum: float) -> float | None:
        """Return a number within bounds."""
        value = self.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and minimum <= value <= maximum and math.isfinite(value):
            return float(value)
        raise self.error(name, f"a number from {minimum:g} to {maximum:g}")

    def object(self, name: str) -> "Fields":
        """Return an object's fields, none by default."""
        value = self.get(name)
        if value is None or isinstance(value, dict):
            return Fields(value or {}, f"{self._where}{name}.")
        raise self.error(name, "an object")


def is_token_list(value: Any) -> bool:
    """Return whether a value is a list of whole numbers, not empty."""
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
