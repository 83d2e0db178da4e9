"""Cells of JAX's libraries learn under a plan, with the gradients of a plain scan and a part of its memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.support import EXAMPLES, JAX_CELLS, python

SIZE = r"([\d.]+ [KM]iB)"
TIME = r"\d+ ms"
ROW = re.compile(rf"^(\w+) +{SIZE} +{TIME} +{SIZE} +{TIME} +([\d.e-]+) +([\d.]+) -> ([\d.]+)$", re.M)
CELLS = {
    "equinox_cells.py": ["GRUCell", "LSTMCell"],
    "flax_cells.py": ["SimpleCell", "GRUCell", "OptimizedLSTMCell"],
    "spyx_cells.py": ["LIF", "RLIF", "ALIF", "CuBaLIF"],
}


def name(file: Path) -> str:
    return file.name


def size(text: str) -> float:
    """Return a size in bytes; printed ones have four digits."""
    number, unit = text.split()
    return float(number) * {"KiB": 1024, "MiB": 1024**2}[unit]


def library(file: Path) -> str:
    return file.name.removesuffix("_cells.py")


@pytest.mark.parametrize("file", JAX_CELLS, ids=name)
def test_cells_learn_under_a_plan_with_the_gradients_of_a_plain_scan(file: Path) -> None:
    done = python(file, seconds=300)
    assert (done.returncode, done.stderr) == (0, "")
    (limit,) = re.findall(r"; memory='(\d+ \wiB)'$", done.stdout.splitlines()[0])
    rows = ROW.findall(done.stdout)
    assert [row[0] for row in rows] == CELLS[file.name]
    for _, plain, planned, differ, first, last in rows:
        assert size(planned) <= size(limit) < size(plain) / 4
        assert float(differ) <= 1e-5
        assert float(last) < 0.8 * float(first)


@pytest.mark.parametrize("file", JAX_CELLS, ids=name)
def test_adapters_say_what_to_install(file: Path) -> None:
    assert file.read_text().splitlines()[0].endswith(f'Install: pip install ".[jax]" {library(file)}.')


@pytest.mark.parametrize("file", JAX_CELLS, ids=name)
def test_a_missing_package_is_named(file: Path) -> None:
    missing = library(file)
    script = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; "
        f"runpy.run_path({str(file)!r}, run_name='__main__')"
    )
    done = python("-c", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{missing} is not installed; install it with: pip install {missing}\n"


def test_a_layer_by_hand_takes_less_memory_under_smaller_limits() -> None:
    done = python(EXAMPLES / "spiking_layer_jax.py", seconds=300)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(rf"^([\w.]+(?: [KM]iB)?) +{SIZE} +{TIME} +([\d.e-]+)$", done.stdout, re.M)
    assert rows[0][0] == "jax.lax.scan"
    assert len(rows) == 4
    for limit, peak, differ in rows[1:]:
        assert size(peak) <= size(limit) < size(rows[0][1])
        assert float(differ) <= 1e-5
