"""The warm daemon leaves its workers nothing to read again that it has read."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from penstock.spark import warm_daemon


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "archive.zip"
    with zipfile.ZipFile(place, "w") as written:
        for name in ("packed_modules/__init__.py", "packed_modules/first.py", "packed_modules/later.py"):
            written.writestr(name, "")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(sys, "path_importer_cache", sys.path_importer_cache.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    return place


def test_workers_need_not_read_archives_again_and_can_still_import_from_them(archive, monkeypatch):
    importlib.import_module("packed_modules.first")
    warm_daemon.forget_archives()
    read = []
    monkeypatch.setattr(zipimport, "_read_directory", lambda place: read.append(place) or {})
    # What PySpark's worker does when it has a new place for modules, and each one has.
    importlib.invalidate_caches()
    assert read == []
    assert importlib.import_module("packed_modules.later").__file__ == str(archive / "packed_modules" / "later.py")


def test_everything_that_it_imports_beforehand_is_there():
    for module in warm_daemon.MODULES:
        importlib.import_module(module)
