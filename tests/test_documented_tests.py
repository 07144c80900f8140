"""The tests that pages of the documentation show are run as they stand there."""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = [
    DOCS / "testing-your-jobs.md",
    *sorted((DOCS / "guide").glob("*.md")),
    *sorted((DOCS / "connectors").glob("*.md")),
]
PAGES = [DOCS / "index.md", *GUIDE]


@pytest.fixture(autouse=True)
def _log_as_before():
    """An example may set the log up; other tests listen to the log."""
    logger = logging.getLogger("penstock")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield
    logger.setLevel(before[0])
    logger.propagate = before[1]
    logger.handlers[:] = before[2]


def shown(page: Path) -> dict[str, object]:
    """What a page's code defines; its blocks build on each other."""
    names: dict[str, object] = {"__name__": "documented"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    return names


TESTS = {(page.stem, name): test for page in PAGES for name, test in shown(page).items() if name.startswith("test_")}


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_a_page_shows_tests(page):
    assert len([name for stem, name in TESTS if stem == page.stem]) >= 4


@pytest.mark.parametrize(("page", "name"), TESTS)
def test_what_a_page_shows_works(page, name, request):
    test = TESTS[page, name]
    test(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(test).parameters})
