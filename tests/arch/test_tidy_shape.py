"""Classes and functions stay small, every module says what it is, and nothing half-done is left lying about.

How long a file is decides nothing: a file that is squeezed below a number reads worse than before. Long files are named
at the end of a run of these tests (`conftest.py`). What makes a class hard to follow is how much it remembers, and that
has a limit.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

Finding = tuple[int, str]

MAX_FUNCTION_LINES = 60
MAX_ATTRIBUTES = 15

# Classes that had more when the limit came. They may only shrink: whoever takes some away lowers the number.
LARGER_CLASSES = {
    "Simulation": 28,
    "MessageChecker": 22,
    "ExternalSystem": 21,
    "ZmqTransport": 21,
    "CheckpointsUnderWay": 19,
    "PendingCheckpoint": 19,
    "RocksBackend": 19,
    "Actor": 18,
    "CheckpointStatistics": 17,
    "ControlServer": 17,
    "Job": 17,
    "_JobCheck": 17,
    "Ending": 16,
    "SlotHost": 16,
    "SlotTaskHost": 16,
}

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Comments that speak to a tool.
TOOL_COMMENT = re.compile(r"^#\s*(noqa|type:|pragma|ruff:|mypy:|fmt:|codespell:|!)")


def attributes_by_class(tree: ast.Module) -> Iterator[tuple[int, str, int]]:
    """Line, name and number of attributes of every class: those that its own methods set. Records, whose fields are set
    by whoever makes them, are another matter: they have as many as there are facts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield node.lineno, node.name, len({name for method in methods for name in _attributes_set(method)})


def _attributes_set(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def large_classes(tree: ast.Module) -> Iterator[Finding]:
    for line, name, count in attributes_by_class(tree):
        limit = LARGER_CLASSES.get(name, MAX_ATTRIBUTES)
        if count > limit:
            yield line, f"{name} sets {count} attributes, {limit} are allowed: give a part of them a class of its own"


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
    if not LEFTOVER.search(text):
        return
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


def factless_logs(tree: ast.Module) -> Iterator[Finding]:
    """Log texts whose facts only handlers see that print fields."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr="info" | "warning" | "error"),
                args=[ast.Constant(value=str() as text)],
                keywords=[_, *_],
            ):
                yield node.lineno, f"{text!r} does not say of what: have the text itself name its facts"


# --- the rules over the source ---------------------------------------------------------------------------------------


def test_classes_remember_little(breaking):
    assert breaking("package_module", lambda file: large_classes(file.tree)) == {}


def test_classes_that_may_be_larger_exist_once(package_modules):
    found = [name for module in package_modules for _, name, _ in attributes_by_class(module.tree)]
    assert [name for name in LARGER_CLASSES if found.count(name) != 1] == []


def test_functions_are_short(breaking):
    assert breaking("python_file", lambda file: long_functions(file.tree)) == {}


def test_modules_say_what_belongs_in_them(breaking):
    assert breaking("package_module", lambda file: missing_module_docstring(file.tree)) == {}


def test_nothing_unfinished_is_left(breaking):
    assert breaking("python_file", lambda file: leftovers(file.text, file.tree)) == {}


def test_logs_say_what_they_are_about_in_their_texts(breaking):
    assert breaking("package_module", lambda file: factless_logs(file.tree)) == {}


def test_no_code_is_kept_as_a_comment(breaking):
    assert breaking("python_file", lambda file: commented_code(file.text)) == {}


# --- the rules catch what they are for -------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "caught"), [(MAX_ATTRIBUTES, False), (MAX_ATTRIBUTES + 1, True)])
def test_a_class_that_remembers_much_is_caught(plant, count, caught):
    first = "".join(f"        self.x{number} = 1\n" for number in range(count - 1))
    text = f"class A:\n    def __init__(self):\n{first}    def f(self):\n        self.x0, self.last = 2, 3\n"
    assert bool(list(large_classes(plant(text).tree))) is caught


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
    ("call", "caught"),
    [
        ("log.info('done', extra={'job': job})", True),
        ("log.warning('done', extra=known)", True),
        ("log.info('job %s is done', job, extra={'job': job})", False),
        ("log.info('done')", False),
        ("log.debug('done', extra=known)", False),
    ],
)
def test_a_log_whose_facts_are_in_fields_only_is_caught(plant, call, caught):
    assert bool(list(factless_logs(plant(f"{call}\n").tree))) is caught


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
