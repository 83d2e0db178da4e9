"""Settings of all tests."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

# Tests run on all cores already; threads that wait for each other on busy cores take many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Plans of one test, or of the user, are none of the next.
os.environ["CKPTPLAN_CACHE"] = "0"

# The deadline is off: machines are shared, and a slow example is no failure.
_common: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# Tests of a change see the same examples each time; "thorough" draws new ones.
settings.register_profile("quick", max_examples=60, derandomize=True, **_common)
settings.register_profile("gate", max_examples=120, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=1000, **_common)
settings.load_profile(os.environ.get("CKPTPLAN_HYPOTHESIS", "quick"))
