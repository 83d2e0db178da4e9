"""The pages are a site: each is listed once, and the first page of each reader leads on and can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import ckptplan
from tests.support import run

DOCS = Path(__file__).parent.parent / "docs"
#: The first pages of readers: of PyTorch, of hardware, of other training loops, of the paper.
START = [DOCS / f"{name}.md" for name in ("tutorial", "machines", "own-loop", "strategies")]


def listed() -> list[str]:
    """Return the pages that tables of contents name, relative to docs."""
    found = []
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            found += [(page.parent / name).relative_to(DOCS).as_posix() for name in names]
    return found


def test_every_page_is_in_one_table_of_contents() -> None:
    pages = [page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")]
    assert sorted([*listed(), "index"]) == sorted(pages)


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "reference.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: ckptplan\.(\w+)$", text, re.M))
    assert named == set(ckptplan.__all__) - {"__version__"}


@pytest.mark.parametrize("page", START, ids=lambda page: page.stem)
def test_the_first_page_of_a_reader_leads_on(page: Path, tmp_path: Path) -> None:
    """Its commands run as they stand, and its links lead to pages."""
    assert (DOCS / "index.md").read_text().count(f"]({page.name})") == 1
    text = page.read_text()
    assert len(re.findall(r"\]\([\w/-]+\.md[#)]", text)) >= 4
    commands = re.findall(r"^\.venv/bin/ckptplan (.*)$", text, re.M)
    assert len(commands) >= 2
    for command in commands:
        done = run(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
