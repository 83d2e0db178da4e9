"""Settings of all tests."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

# Tests run on all cores already; threads that wait for each other on busy cores take many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of what is kept for other processes, tests share the script of charts, which takes seconds to make. A file in
# place of the folder of plans keeps those out: one test's plans, or the user's, are none of the next.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["CKPTPLAN_CACHE"] = tempfile.mkdtemp(prefix="ckptplan-tests-")
    atexit.register(shutil.rmtree, os.environ["CKPTPLAN_CACHE"], ignore_errors=True)
    (Path(os.environ["CKPTPLAN_CACHE"]) / "plans").touch()

# The deadline is off: machines are shared, and a slow example is no failure.
_common: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# Tests of a change see the same examples each time; "thorough" draws new ones.
settings.register_profile("quick", max_examples=60, derandomize=True, **_common)
settings.register_profile("gate", max_examples=120, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=1000, **_common)
settings.load_profile(os.environ.get("CKPTPLAN_HYPOTHESIS", "quick"))
