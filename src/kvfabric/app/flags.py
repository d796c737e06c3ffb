"""Mistakes found behind the command line, told with the flag that caused them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kvfabric.errors import ConfigError, UnsupportedError


@contextmanager
def told_by_flag(flags: Mapping[str, str]) -> Iterator[None]:
    """Replace the place of a mistake by its flag.

    Args:
        flags: the flag by what the packages call the value.
    """
    try:
        yield
    except ConfigError as error:
        kind = UnsupportedError if isinstance(error, UnsupportedError) else ConfigError
        where = flags.get(error.where, error.where)
        raise kind(error.what, where=where, hint=error.hint) from None
