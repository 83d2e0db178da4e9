"""The cases of ``lightning_cases.py`` pass, in a process of their own."""

import subprocess
import sys
from pathlib import Path


def test_models_learn_within_a_limit_by_the_callback_of_lightning() -> None:
    """Lightning replaces ``torch.compile`` for its whole process, and tests of compiled cells fail after it."""
    cases = Path(__file__).parent / "lightning_cases.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", str(cases)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout
