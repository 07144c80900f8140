"""The tests that docs/testing-your-jobs.md shows are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "testing-your-jobs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def shown() -> dict[str, object]:
    """What the page's code defines; its blocks build on each other."""
    names: dict[str, object] = {"__name__": "documented"}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


TESTS = {name: test for name, test in shown().items() if name.startswith("test_")}


def test_the_page_shows_tests():
    assert len(TESTS) >= 4


@pytest.mark.parametrize("name", TESTS)
def test_what_the_page_shows_works(name):
    TESTS[name]()
