"""Programs with other libraries and models: the same gradients as their plain loop, within the limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckptplan.units import parse_bytes
from tests.examples.support import EXAMPLES, python

FILES = sorted(file for file in (EXAMPLES / "libraries").glob("*.py") if not file.name.startswith("compare"))
#: A way, its peak with a unit, its time, and by how much its gradients differ from those of the plain loop.
ROW = re.compile(r"^(.+?)\s+([\d.]+ [kM]?B)\s+\d+ ms\s+(\S+)$", re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_program_has_the_gradients_of_its_plain_loop_within_the_limit(file: Path) -> None:
    done = python(file)
    assert done.returncode == 0, done.stderr
    rows = {way: (parse_bytes(size), float(differ)) for way, size, differ in ROW.findall(done.stdout)}
    limit = re.search(r'^MEMORY = "(.+)"$', file.read_text(), re.MULTILINE)
    assert limit is not None
    plain, planned = rows["plain"][0], rows[f"memory='{limit[1]}'"]
    # What is computed before the loop, as an encoder's outputs, takes memory beside the limit.
    assert planned[0] <= 1.15 * parse_bytes(limit[1]) < 0.4 * plain
    assert planned[1] < 1e-4


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_program_has_at_most_eighty_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 80
