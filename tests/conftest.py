"""Settings of the whole suite: property tests are derandomized, so a run repeats exactly.

Tests run the sources, also where a compiled core is at hand; one test compares the two.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("KVFABRIC_CORE", "interpreted")
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
