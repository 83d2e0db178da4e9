"""Settings of all tests, and their two kinds: quick ones, which run by default, and slow ones."""

import atexit
import gc
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

# Tests run on all cores already; threads that wait for each other on busy cores take many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Programs of JAX run once here: machine code that is optimized takes longer to make than it saves.
_QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ.setdefault("XLA_FLAGS", _QUICK_XLA)
# Tests share a cache folder, in which processes keep the rates that they measured, and leave the user's alone.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["CKPTPLAN_CACHE"] = tempfile.mkdtemp(prefix="ckptplan-tests-")
    atexit.register(shutil.rmtree, os.environ["CKPTPLAN_CACHE"], ignore_errors=True)

#: What `python -m pytest` selects (pyproject.toml); slow modules are then not even imported.
QUICK_ONLY = "not slow"
#: The kind of each folder and module of tests. A quick one may mark single tests with `pytest.mark.slow`.
QUICK = frozenset({
    "cli", "cost", "golden", "laws", "model", "paper", "planning", "recursion", "report", "schedule", "search",
    "storage", "strategies", "studies", "test_errors.py", "test_house.py", "test_smoke_jax.py",
    "test_smoke_torch.py", "test_units.py", "test_wording.py",
})  # fmt: skip
SLOW = frozenset({
    "calibration", "examples", "execution", "interop", "jax", "pages", "security", "torch",
    "test_architecture.py", "test_benchmarks.py", "test_contracts.py", "test_docs.py", "test_fuzz.py",
    "test_gpu_benchmark.py", "test_packaging.py", "test_site.py",
})  # fmt: skip
HERE = Path(__file__).parent


def room_of(path: Path) -> str:
    """The folder or module of this folder that a path is, or lies in."""
    return path.relative_to(HERE).parts[0]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow modules out where only quick tests are selected: they import what README does not install."""
    if config.option.markexpr != QUICK_ONLY or collection_path == HERE or HERE not in collection_path.parents:
        return None
    return room_of(collection_path) in SLOW or None


def pytest_configure() -> None:
    """Refuse tests of neither kind."""
    holding = {room_of(path) for path in HERE.rglob("test_*.py")}
    if unknown := holding - QUICK - SLOW:
        raise pytest.UsageError(f"say in tests/conftest.py whether these are quick or slow: {sorted(unknown)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by its place."""
    for item in items:
        if room_of(item.path) in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Each test draws the same random numbers, whichever tests its process ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def imports_excluded_from_garbage_collection() -> None:
    """Many tests collect garbage again and again, which takes a second with all that is imported by then."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


# The deadline is off: machines are shared, and a slow example is no failure.
_common: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# Tests of a change see the same examples each time; "thorough" draws new ones.
settings.register_profile("quick", max_examples=12, derandomize=True, **_common)
#: Failing examples stay as they were drawn (benchmarks/mutants.py).
_unshrunk = (Phase.explicit, Phase.generate)
settings.register_profile("unshrunk", max_examples=12, derandomize=True, phases=_unshrunk, **_common)
#: Twelve examples already find the wrong formulas of benchmarks/mutants.py.
settings.register_profile("gate", max_examples=25, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=1000, **_common)
settings.load_profile(os.environ.get("CKPTPLAN_HYPOTHESIS", "quick"))
