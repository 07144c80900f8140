"""The reference pages say what the code says."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("penstock_docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_pages_are_fresh(generator):
    assert generator.stale_pages() == [], "run `make docs`"


def test_a_page_that_says_something_else_is_stale(generator, tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "PAGES", tmp_path)
    assert generator.stale_pages() == ["settings.md", "errors.md"]
    assert generator.main([]) == 0
    assert generator.stale_pages() == []
    (tmp_path / "errors.md").write_text("something else", encoding="utf-8")
    assert generator.main(["--check"]) == 1


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Two settings, one of which says nothing."""

    spoken_ms: int = 1_500
    """How long
    to speak."""
    silent: int = 1


def test_texts_are_found_below_their_fields(generator):
    assert generator.texts_below_fields(Planted) == {"spoken_ms": "How long to speak."}


def test_a_setting_without_text_is_refused(generator):
    with pytest.raises(SystemExit, match=r"Planted\.silent has no text"):
        list(generator._field_rows(Planted))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("timeout_ms", 600_000, "`600_000` (10 min)"),
        ("timeout_ms", 500, "`500`"),
        ("batch_bytes", 1024, "`1_024` (1 KiB)"),
        ("rows", 65_536, "`65_536`"),
        ("transport", "auto", "`'auto'`"),
        ("unaligned", False, "`False`"),
        ("limit", None, "`None`"),
    ],
)
def test_a_default_is_shown_with_its_unit(generator, name, value, text):
    assert generator._default(name, value) == text
