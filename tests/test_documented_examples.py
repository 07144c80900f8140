"""The examples in docstrings of what users call are run as they stand there."""

from __future__ import annotations

import doctest
import inspect
import logging
from collections.abc import Iterator

import pytest

import penstock
from penstock.api.program import Program


@pytest.fixture(autouse=True)
def _log_as_before():
    """An example may set the log up; other tests listen to the log."""
    logger = logging.getLogger("penstock")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield
    logger.setLevel(before[0])
    logger.propagate = before[1]
    logger.handlers[:] = before[2]


def documented() -> Iterator[tuple[str, object]]:
    """The public functions, the public classes and their methods, by name."""
    for name in (*penstock.__all__, "Program"):
        found = Program if name == "Program" else getattr(penstock, name)
        yield name, found
        if inspect.isclass(found):
            for method_name, method in inspect.getmembers(found, inspect.isfunction):
                yield f"{name}.{method_name}", method


EXAMPLES = {name: found for name, found in documented() if ">>> " in (found.__doc__ or "")}


def test_the_examples_are_found():
    assert EXAMPLES.keys() >= {"files", "tumbling", "Explanation", "Program.from_iterable", "Stream.split"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_works(name):
    found = EXAMPLES[name]
    # No example starts Spark. An example may hand a session to a function that only keeps the session for later.
    (example,) = doctest.DocTestFinder(recurse=False).find(found, name, globs={name: found, "spark": None})
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    told: list[str] = []
    runner.run(example, out=told.append)
    assert not runner.failures, "".join(told)
