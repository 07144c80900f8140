"""Gives the tidy tests their subjects: a test looks at all files of a kind, and names the files that break its rule."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "penstock"

# Made by tools, never written by hand.
GENERATED_FOLDERS = ("__pycache__", "build", "dist", "spark-warehouse", "metastore_db", "node_modules")
HIDDEN_BUT_OURS = (".ci", ".github", ".gitignore")


@dataclass(frozen=True)
class SourceFile:
    """One file of the repository; Python files also as a syntax tree."""

    path: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix() if self.path.is_relative_to(ROOT) else self.path.as_posix()


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if n not in GENERATED_FOLDERS and _is_ours(n))
        yield from (Path(parent) / n for n in sorted(names) if _is_ours(n))


def _is_ours(name: str) -> bool:
    return (not name.startswith(".") or name in HIDDEN_BUT_OURS) and not name.endswith((".egg-info", ".pyc"))


def _read(path: Path) -> SourceFile | None:
    try:
        return SourceFile(path, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return None


def _tree() -> dict[str, SourceFile]:
    read = (_read(path) for path in _files(ROOT))
    return {file.name: file for file in read if file is not None}


TREE = _tree()
PYTHON = {name: file for name, file in TREE.items() if name.endswith(".py")}


def _below(*folders: str) -> list[SourceFile]:
    return [f for name, f in PYTHON.items() if name.startswith(tuple(f"src/penstock/{folder}" for folder in folders))]


LONG_FILE_LINES = 500


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files that have become long: not a fault, but a question to ask when one of them is changed."""
    lines = {file.name: file.text.count("\n") for file in PYTHON.values()}
    long = sorted(((count, name) for name, count in lines.items() if count >= LONG_FILE_LINES), reverse=True)
    if long:
        terminalreporter.section(f"files of {LONG_FILE_LINES} lines and more: does each answer one question?")
        terminalreporter.write_line("  ".join(f"{name} {count}" for count, name in long))


SUBJECTS: dict[str, list[SourceFile]] = {
    # Nothing in these may depend on the world.
    "pure_module": _below("core/", "plan/", "settings.py"),
    # In these, order of iteration reaches effects, messages, bytes or the simulator's log.
    "ordered_module": _below("core/", "plan/", "settings.py", "wire/", "runtime/", "sim/"),
    "package_module": _below(""),
    "test_of_core": [f for name, f in PYTHON.items() if name.startswith("tests/core/")],
    "test_module": [f for name, f in PYTHON.items() if name.startswith("tests/")],
    "python_file": list(PYTHON.values()),
    "text_file": list(TREE.values()),
}


@pytest.fixture(scope="session")
def breaking() -> Callable[[str, Callable[[SourceFile], Iterable[object]]], dict[str, list[object]]]:
    """All files of a subject that break a rule, each with what the rule finds in the file."""

    def look(subject: str, rule: Callable[[SourceFile], Iterable[object]]) -> dict[str, list[object]]:
        findings = {file.name: list(rule(file)) for file in SUBJECTS[subject]}
        return {name: found for name, found in findings.items() if found}

    return look


@pytest.fixture
def plant() -> Callable[..., SourceFile]:
    """Make a file that exists only in memory, to show that a rule catches what is in it."""

    def make(text: str, path: str = "src/penstock/core/planted.py") -> SourceFile:
        return SourceFile(ROOT / path, text)

    return make


@pytest.fixture(scope="session")
def package_modules() -> list[SourceFile]:
    """Every module of the package, for rules that look at all of them at once."""
    return SUBJECTS["package_module"]


@pytest.fixture(scope="session")
def scripts() -> list[SourceFile]:
    """Python files that are neither of the package nor tests: they use the package, too."""
    return [file for name, file in PYTHON.items() if not name.startswith(("src/", "tests/"))]


@pytest.fixture(scope="session")
def test_modules() -> list[SourceFile]:
    """Every file below tests/."""
    return SUBJECTS["test_module"]
