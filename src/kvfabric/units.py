"""Integer units of the whole project: ns, bytes, bit/s; and the text forms of quantities.

Network rates are in bits and memory in bytes. Decimal prefixes unless the unit says Ki, Mi, Gi.
"""

import math
import re
from typing import NewType

from kvfabric.errors import ConfigError

Ns = NewType("Ns", int)
Bytes = NewType("Bytes", int)
BitsPerS = NewType("BitsPerS", int)

NS_PER_S = 1_000_000_000
GIB = 1 << 30
GB = 1_000_000_000

_PREFIX = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_PREFIX |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_TIME = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded up."""
    return -(-numerator // denominator)


def _split(text: object, *, kind: str, example: str, where: str) -> tuple[float, str]:
    hint = f"Write a quantity with its unit, such as '{example}'"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ConfigError(f"expected {kind}, read {text!r}", where=where, hint=hint)
    if not isinstance(text, str):
        raise ConfigError(f"bare number {text!r} where {kind} is needed", where=where, hint=hint)
    match = _NUMBER.match(text)
    if match is None:
        raise ConfigError(f"cannot read {text!r} as {kind}", where=where, hint=hint)
    number, unit = float(match.group(1)), match.group(2)
    if not unit:
        raise ConfigError(f"bare number {text!r} where {kind} is needed", where=where, hint=hint)
    if not math.isfinite(number):
        raise ConfigError(f"{text!r} is not finite", where=where, hint=hint)
    return number, unit


def _scaled(text: object, factors: dict[str, int], *, kind: str, example: str, where: str) -> int:
    number, unit = _split(text, kind=kind, example=example, where=where)
    if unit not in factors:
        known = ", ".join(sorted(factors, key=lambda name: (factors[name], name)))
        raise ConfigError(
            f"unknown unit {unit!r} in {text!r}", where=where, hint=f"Units of {kind}: {known}"
        )
    return round(number * factors[unit])


def parse_rate_bps(text: object, *, where: str = "") -> int:
    """Return bit/s, above 0, from text such as ``400 Gbit/s``.

    >>> parse_rate_bps("400 Gbit/s")
    400000000000
    """
    factors = {f"{p}{u}": f for p, f in _PREFIX.items() for u in ("bit/s", "bps") if "i" not in p}
    rate_bps = _scaled(text, factors, kind="a rate", example="400 Gbit/s", where=where)
    if rate_bps < 1:
        raise ConfigError(f"{text!r} is no rate", where=where, hint="Write a rate above 0")
    return rate_bps


def parse_bytes(text: object, *, where: str = "") -> int:
    """Return bytes from text such as ``80 GB`` or ``79.19 GiB``.

    >>> parse_bytes("2 KiB")
    2048
    """
    factors = {f"{prefix}B": factor for prefix, factor in _PREFIX.items()}
    return _scaled(text, factors, kind="a size", example="80 GB", where=where)


def parse_bytes_per_s(text: object, *, where: str = "") -> int:
    """Return bytes/s from text such as ``3.35 TB/s``."""
    factors = {f"{prefix}B/s": factor for prefix, factor in _PREFIX.items()}
    return _scaled(text, factors, kind="a memory bandwidth", example="3.35 TB/s", where=where)


def parse_duration_ns(text: object, *, where: str = "") -> int:
    """Return ns from text such as ``50 ms``.

    >>> parse_duration_ns("1.5 s")
    1500000000
    """
    return _scaled(text, dict(_TIME), kind="a duration", example="50 ms", where=where)


def parse_frequency_hz(text: object, *, where: str = "") -> float:
    """Return events per second from text such as ``2.5 /s``."""
    number, unit = _split(text, kind="a request rate", example="2.5 /s", where=where)
    factors = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
    if unit not in factors:
        raise ConfigError(
            f"unknown unit {unit!r} in {text!r}", where=where, hint="Units: /s, /min, /h"
        )
    return number * factors[unit]


def format_bytes(num_bytes: int) -> str:
    """Return bytes as short decimal text, such as ``1.05 TB``."""
    for factor, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.4g} {unit}"
    return f"{num_bytes} B"


def format_rate(rate_bps: int) -> str:
    """Return a rate as short text, such as ``400 Gbit/s``."""
    for factor, unit in ((10**12, "Tbit/s"), (10**9, "Gbit/s"), (10**6, "Mbit/s")):
        if rate_bps >= factor:
            return f"{rate_bps / factor:.4g} {unit}"
    return f"{rate_bps} bit/s"


def format_ns(duration_ns: int) -> str:
    """Return a duration as short text, such as ``12.3 ms``."""
    for factor, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if duration_ns >= factor:
            return f"{duration_ns / factor:.4g} {unit}"
    return f"{duration_ns} ns"


def exact_rate_text(rate_bps: int) -> str:
    """Return a rate that ``parse_rate_bps`` reads back exactly.

    >>> exact_rate_text(400_000_000_000)
    '400 Gbit/s'
    """
    return _exact_text(
        rate_bps, (("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6)), "bit/s"
    )


def exact_duration_text(duration_ns: int) -> str:
    """Return a duration that ``parse_duration_ns`` reads back exactly.

    >>> exact_duration_text(50_000_000)
    '50 ms'
    """
    return _exact_text(duration_ns, (("s", 10**9), ("ms", 10**6), ("us", 10**3)), "ns")


def _exact_text(value: int, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    for unit, factor in units:
        if value and value % factor == 0:
            return f"{value // factor} {unit}"
    return f"{value} {smallest}"
