"""The tests that need a CUDA device, a stage of benchmarks.gpu: python -m benchmarks.cuda_tests."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.harness import NeedsCudaError, Setting, main

TESTS = ("tests/torch/test_cuda.py", "tests/jax/test_cuda.py")


def run(setting: Setting) -> dict[str, Any]:
    """Run the tests that need a CUDA device, and return how many passed, failed and were skipped."""
    if not setting.on_gpu:
        raise NeedsCudaError
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={path}"]
        # One process, since there is one device; what other versions of PyTorch warn of is no failure.
        command += ["-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", *TESTS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not path.exists():
            raise RuntimeError(f"pytest wrote no report: {done.stdout[-500:]}{done.stderr[-500:]}")
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))  # noqa: S314 - pytest's own report
    failed = {
        f"{case.get('classname')}.{case.get('name')}": (child.get("message") or "")[:300]
        for case in cases
        for child in case
        if child.tag in ("failure", "error")
    }
    skipped = sum(child.tag == "skipped" for case in cases for child in case)
    if skipped == len(cases):
        raise NeedsCudaError
    setting.failures += [f"{name}: {message}" for name, message in failed.items()]
    return {"passed": len(cases) - len(failed) - skipped, "failed": failed, "skipped": skipped}


if __name__ == "__main__":
    main("cuda_tests", run, {}, about=__doc__)
