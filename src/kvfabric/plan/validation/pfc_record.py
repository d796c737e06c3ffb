"""What the comparisons with packet-level workloads gave that the package does not carry.

Read off ``kvfabric validate --reference DIR --only pfc --format json`` on the date below.
"""

from typing import Final

DATE: Final = "2026-11-30"

_Summary = tuple[int, float, float, float]
_Figures = tuple[tuple[str, float, float], ...]

RECORDED: Final[dict[str, tuple[_Summary, _Figures]]] = {
    "pfc": (
        (8, 0.0181795, -0.07987808, 0.002727537),
        (
            ("incastv128 mean, ms", 7.112971, 7.075858),
            ("incastv128 p99, ms", 10.91104, 10.91423),
            ("kv128 mean, ms", 8.761188, 8.681925),
            ("kv128 p99, ms", 30.72352, 30.06295),
            ("kv128mid mean, ms", 7.048173, 7.054644),
            ("kv128mid p99, ms", 19.8, 19.854),
            ("perm1024n mean, ms", 1.069392, 1.041744),
            ("perm1024n p99, ms", 2.217939, 2.040774),
        ),
    ),
    "pfc per flow": (
        (1580, 0.03993339, -0.5592979, 0.5015411),
        (),
    ),
    "pfc paused": (
        (3, 0.01498262, -0.02236268, 0.002704438),
        (
            ("incastv128, port-us", 993637, 996324.2),
            ("kv128, port-us", 1229982, 1202476),
            ("kv128mid, port-us", 1173888, 1150550),
        ),
    ),
    "pfc-stepped": (
        (8, 0.0123542, -0.03654864, 0.002927019),
        (
            ("incastv128 mean, ms", 7.112971, 7.12431),
            ("incastv128 p99, ms", 10.91104, 10.92197),
            ("kv128 mean, ms", 8.761188, 8.645698),
            ("kv128 p99, ms", 30.72352, 30.46537),
            ("kv128mid mean, ms", 7.048173, 7.068687),
            ("kv128mid p99, ms", 19.8, 19.85795),
            ("perm1024n mean, ms", 1.069392, 1.034887),
            ("perm1024n p99, ms", 2.217939, 2.136876),
        ),
    ),
    "pfc-stepped per flow": (
        (1580, 0.0452678, -0.5587929, 0.3157031),
        (),
    ),
    "max-min": (
        (8, 0.1930303, -0.406646, 0.0002891458),
        (
            ("incastv128 mean, ms", 7.112971, 6.629608),
            ("incastv128 p99, ms", 10.91104, 10.91419),
            ("kv128 mean, ms", 8.761188, 5.567104),
            ("kv128 p99, ms", 30.72352, 18.22992),
            ("kv128mid mean, ms", 7.048173, 5.501767),
            ("kv128mid p99, ms", 19.8, 17.44648),
            ("perm1024n mean, ms", 1.069392, 0.9209388),
            ("perm1024n p99, ms", 2.217939, 1.712936),
        ),
    ),
}
