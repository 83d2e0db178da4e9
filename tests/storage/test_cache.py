"""Law: what is kept for other processes lies in the user's folder for caches, or where a variable says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptplan.storage import cache


def test_a_folder_of_a_user_that_does_not_exist_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "~nosuchuser/x")
    assert cache.find_cache() is None


def test_the_folder_is_the_users_unless_a_variable_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for off in ("0", "off", ""):
        monkeypatch.setenv(cache.VARIABLE, off)
        assert cache.find_cache() is None
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, base in {
        "linux": tmp_path,
        "darwin": tmp_path / "home" / "Library" / "Caches",
        "win32": tmp_path / "local",
    }.items():
        monkeypatch.setattr("sys.platform", platform)
        assert cache.find_cache() == base / "ckptplan" / "places"
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.find_cache() == tmp_path / "home" / ".cache" / "ckptplan" / "places"
