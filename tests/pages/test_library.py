"""The script of charts is made once for each user, and only what this user wrote is taken for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from ckptplan.report.html import page
from ckptplan.report.html.page import load_library
from ckptplan.storage.cache import VARIABLE

SCRIPT = "window.drawChart = 1;\r\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how often the script was made; a short one stands in for 0.9 MB that take seconds."""
    count: list[int] = []

    def make(*_: object, **__: object) -> str:
        count.append(1)
        return SCRIPT

    monkeypatch.setattr(vl_convert, "javascript_bundle", make)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return count


def load_anew() -> str:
    """Return the script as a new process loads it."""
    load_library.cache_clear()
    return load_library()


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    load_library.cache_clear()


def test_the_script_is_made_once(made: list[int], tmp_path: Path) -> None:
    assert load_anew() == load_anew() == SCRIPT
    assert len(made) == 1
    assert len(list((tmp_path / "charts").iterdir())) == 1


def test_the_script_is_that_of_the_installed_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws with Vega and nothing else; another release has another file."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    first = load_anew()
    assert len(first) > 500_000
    assert "drawChart" in first
    assert load_anew() == first
    monkeypatch.setattr(page, "version", lambda _: "99.0")
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda *_, **__: SCRIPT)
    assert load_anew() == SCRIPT
    assert load_anew() == SCRIPT
    assert len(list((tmp_path / "charts").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"\xff", b"alert(1)", b"// 00\nalert(1)"])
def test_a_damaged_file_is_replaced(made: list[int], tmp_path: Path, content: bytes) -> None:
    load_anew()
    [file] = (tmp_path / "charts").iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    assert load_anew() == SCRIPT
    assert file.read_bytes() == whole
    assert len(made) == 2


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
@pytest.mark.parametrize("which", ["the file", "its folder"])
def test_a_file_that_others_can_write_is_not_taken(made: list[int], tmp_path: Path, which: str) -> None:
    load_anew()
    [file] = (tmp_path / "charts").iterdir()
    (file if which == "the file" else file.parent).chmod(0o777)
    assert load_anew() == SCRIPT
    assert len(made) == 2


def test_it_is_made_for_each_process_where_nothing_is_kept(
    made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    assert load_anew() == load_anew() == SCRIPT
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert load_anew() == SCRIPT
    assert len(made) == 3
