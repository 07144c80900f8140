"""Files and functions stay small, every module says what it is, and nothing half-done is left lying about."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

Finding = tuple[int, str]

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Comments that speak to a tool.
TOOL_COMMENT = re.compile(r"^#\s*(noqa|type:|pragma|ruff:|mypy:|fmt:|codespell:|!)")


def long_file(text: str) -> Iterator[Finding]:
    count = len(text.splitlines())
    if count > MAX_FILE_LINES:
        yield count, f"{count} lines, {MAX_FILE_LINES} are allowed: split by the question each part answers"


def long_functions(tree: ast.Module) -> Iterator[Finding]:
    """Lines of code and comments count, the docstring does not."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0]
        is_documented = ast.get_docstring(node, clean=False) is not None
        docstring_lines = _lines(first) if is_documented else 0
        count = _lines(node) - docstring_lines
        if count > MAX_FUNCTION_LINES:
            yield node.lineno, f"{node.name} has {count} lines, {MAX_FUNCTION_LINES} are allowed"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def missing_module_docstring(tree: ast.Module) -> Iterator[Finding]:
    if not (ast.get_docstring(tree) or "").strip():
        yield 1, "says nothing about what belongs in it"


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def leftovers(text: str, tree: ast.Module) -> Iterator[Finding]:
    """Marks of unfinished work, in comments and docstrings."""
    yield from ((line, comment) for line, comment in comments(text) if LEFTOVER.search(comment))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and LEFTOVER.search(ast.get_docstring(node, clean=False) or ""):
            yield node.body[0].lineno, "unfinished, says its docstring"


def commented_code(text: str) -> Iterator[Finding]:
    for line, comment in comments(text):
        if not TOOL_COMMENT.match(comment) and _is_code(comment.lstrip("#").strip()):
            yield line, comment


def _is_code(text: str) -> bool:
    """Whether a comment is a statement rather than a sentence. `return` alone, or a lone name, may be either."""
    if not re.search(r"[=(]|\bimport\b", text):
        return False
    try:
        # The head of a block does not parse without a body.
        body = ast.parse(f"{text} pass" if text.endswith(":") else text).body
    except SyntaxError:
        return False
    match body:
        case [ast.Expr(value=ast.Call())]:
            return True
        case [ast.Expr()] | []:
            return False
        case _:
            return True


# --- the rules over the source ---------------------------------------------------------------------------------------


def test_files_are_short(python_file):
    assert list(long_file(python_file.text)) == []


def test_functions_are_short(python_file):
    assert list(long_functions(python_file.tree)) == []


def test_modules_say_what_belongs_in_them(package_module):
    assert list(missing_module_docstring(package_module.tree)) == []


def test_nothing_unfinished_is_left(python_file):
    assert list(leftovers(python_file.text, python_file.tree)) == []


def test_no_code_is_kept_as_a_comment(python_file):
    assert list(commented_code(python_file.text)) == []


# --- the rules catch what they are for -------------------------------------------------------------------------------


def test_a_long_file_is_caught():
    assert list(long_file("x = 1\n" * MAX_FILE_LINES)) == []
    assert len(list(long_file("x = 1\n" * (MAX_FILE_LINES + 1)))) == 1


@pytest.mark.parametrize(("statements", "caught"), [(MAX_FUNCTION_LINES - 1, False), (MAX_FUNCTION_LINES, True)])
def test_a_long_function_is_caught_whatever_its_docstring(plant, statements, caught):
    docstring = '    """One.\n\n    Two.\n    """\n'
    text = "def f():\n" + docstring + "    x = 1\n" * statements
    assert bool(list(long_functions(plant(text).tree))) is caught


@pytest.mark.parametrize("text", ["", "x = 1\n", '""" """\n', "# A comment.\n"])
def test_a_module_without_docstring_is_caught(plant, text):
    assert len(list(missing_module_docstring(plant(text).tree))) == 1


@pytest.mark.parametrize("text", ["x = 1  # TODO: later\n", "# FIXME\n", '"""TODO."""\n', 'def f():\n    """XXX"""\n'])
def test_an_unfinished_mark_is_caught(plant, text):
    planted = plant(text)
    assert len(list(leftovers(planted.text, planted.tree))) == 1


def test_a_mark_in_data_is_left_alone(plant):
    planted = plant("words = ['TODO']\n")
    assert list(leftovers(planted.text, planted.tree)) == []


@pytest.mark.parametrize(
    "comment",
    ["# x = 1", "# import time", "#from a import b", "# self.f(x)", "# if self.f(x):", "# return f(x)", "# x += f()"],
)
def test_commented_code_is_caught(comment):
    assert [line for line, _ in commented_code(f"y = 1\n{comment}\n")] == [2]


@pytest.mark.parametrize(
    "comment",
    [
        "# Late: that checkpoint was already completed.",
        "# --- state handles ---",
        "# return",
        "# An ack (the first one) arrives.",
        "# noqa: B027",
        "# type: ignore[attr-defined]",
        "# A window of size n = 10 has one pane.",
        "# for all channels (of an edge):",
    ],
)
def test_sentences_are_left_alone(comment):
    assert list(commented_code(f"y = 1\n{comment}\n")) == []
