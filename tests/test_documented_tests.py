"""The tests that the pages show are run as they stand there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("testing-your-jobs.md", "guide/sources.md")


def shown(page: str) -> dict[str, object]:
    """What the page's code defines; its blocks build on each other."""
    names: dict[str, object] = {"__name__": "documented"}
    path = DOCS / page
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(path), "exec"), names)
    return names


TESTS = {(page, name): test for page in PAGES for name, test in shown(page).items() if name.startswith("test_")}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_tests(page):
    assert sum(1 for shown_on, _ in TESTS if shown_on == page) >= 4


@pytest.mark.parametrize(("page", "name"), TESTS)
def test_what_a_page_shows_works(page, name, tmp_path):
    test = TESTS[page, name]
    test(**({"tmp_path": tmp_path} if "tmp_path" in inspect.signature(test).parameters else {}))
