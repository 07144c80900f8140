"""Rules about the tree as a whole: names of files, what tests may import, dead code, traces of one machine."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

import pytest

Finding = tuple[int, str]

# A module is named by what it knows, not by being handy.
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "shared", "stuff"}

# A path that starts so exists on one machine only. In an address a letter precedes the slash.
MACHINE_PATH = re.compile(r"(?<![\w.:/])(?:/(?:home|root|Users|mnt|srv|work|workspace)/[\w.]|[A-Z]:\\Users\\)")

# Where packages come from is the business of the machine. In two pieces, so that this file passes its own rule.
PACKAGE_HOST = re.compile(
    "|".join(
        first + second
        for first, second in (
            ("py", r"pi\.org"),
            ("python", "hosted"),
            ("ana", r"conda\.org"),
            ("maven", r"\.(apache\.)?org"),
            ("deb", r"ian\.org"),
            ("archive", r"\.ubuntu"),
            ("index", "[-_]url"),
        )
    ),
    re.IGNORECASE,
)

# What git writes into a file where two changes do not fit together. In pieces, as above.
CONFLICT = re.compile("^(" + "<" * 7 + "|" + ">" * 7 + ") ")

# Decorators that leave a function to be called by its name. Any other may register it somewhere.
PLAIN_DECORATORS = {"property", "cached_property", "staticmethod", "classmethod", "override", "contextmanager", "cache"}

# Reached by their users or by the interpreter, not by another module.
ENTRY_POINTS = re.compile(r"penstock\.testing|penstock\.connectors\..*|penstock\.metrics\..*|penstock\.(.*\.)?__main__")


def module_of(path: PurePosixPath) -> str:
    parts = path.with_suffix("").parts
    inner = parts[parts.index("penstock") :]
    return ".".join(inner[:-1] if inner[-1] == "__init__" else inner)


def is_entry_point(path: PurePosixPath) -> bool:
    return path.name == "__init__.py" or ENTRY_POINTS.fullmatch(module_of(path)) is not None


def imported_modules(tree: ast.Module) -> Iterator[Finding]:
    """Every dotted name that an import statement may mean a module by, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imports_beyond(tree: ast.Module, allowed: Iterable[str]) -> list[Finding]:
    """Modules of ours that are imported although they are not below one of `allowed`."""
    roots = tuple(allowed)
    parents = {root.rpartition(".")[0] for root in roots}
    reached = [(line, name) for line, name in imported_modules(tree) if name.split(".")[0] == "penstock"]
    inside = [(line, n) for line, n in reached if any(n == root or n.startswith(f"{root}.") for root in roots)]
    lines_inside = {line for line, _ in inside}
    # `from penstock import settings` names the package too; that alone is not an import of all of it.
    return [f for f in reached if f not in inside and not (f[1] in parents and f[0] in lines_inside)]


def lines_matching(text: str, pattern: re.Pattern[str]) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), start=1) if pattern.search(line)]


# --- dead code -------------------------------------------------------------------------------------------------------

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def private_definitions(tree: ast.Module) -> Iterator[Definition]:
    for node in ast.walk(tree):
        if not isinstance(node, Definition) or not node.name.startswith("_") or node.name.endswith("_"):
            continue
        decorators = {re.split(r"[.(]", ast.unparse(d))[-1] for d in node.decorator_list}
        if decorators <= PLAIN_DECORATORS:
            yield node


def names_used(tree: ast.AST) -> Counter[str]:
    """How often each name is referred to, by itself, as an attribute, in an import or as a text."""
    used: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                used[name] += 1
            case _:
                pass
    return used


def dead_private_definitions(tree: ast.Module, used: Counter[str]) -> list[Finding]:
    """Private functions, methods and classes that nobody but themselves refers to; `used` counts the whole package."""
    return [
        (node.lineno, node.name)
        for node in private_definitions(tree)
        if used[node.name] - names_used(node)[node.name] <= 0
    ]


# --- the rules over the source ---------------------------------------------------------------------------------------


def test_file_names_say_something(breaking):
    assert breaking("python_file", lambda file: {PurePosixPath(file.name).stem} & NAMES_THAT_SAY_NOTHING) == {}


def test_no_file_tells_of_one_machine(breaking):
    assert breaking("text_file", lambda file: lines_matching(file.text, MACHINE_PATH)) == {}


def test_no_file_names_a_package_host(breaking):
    assert breaking("text_file", lambda file: lines_matching(file.text, PACKAGE_HOST)) == {}


def test_no_file_has_both_sides_of_a_conflict(breaking):
    assert breaking("text_file", lambda file: lines_matching(file.text, CONFLICT)) == {}


def test_no_private_function_is_dead(breaking, package_modules):
    used: Counter[str] = Counter()
    for module in package_modules:
        used.update(names_used(module.tree))
    assert breaking("package_module", lambda file: dead_private_definitions(file.tree, used)) == {}


def test_every_module_is_imported_by_another(package_modules):
    imported = {name for module in package_modules for _, name in imported_modules(module.tree)}
    paths = [PurePosixPath(module.name) for module in package_modules]
    assert [path for path in paths if not is_entry_point(path) and module_of(path) not in imported] == []


def test_tests_of_the_core_import_only_core_and_settings(breaking):
    allowed = ("penstock.core", "penstock.settings")
    assert breaking("test_of_core", lambda file: imports_beyond(file.tree, allowed)) == {}


def test_test_files_have_unique_names(test_modules):
    """Two files of one name cannot be told apart in a report."""
    counted = Counter(PurePosixPath(module.name).name for module in test_modules)
    assert {name for name, count in counted.items() if count > 1} <= {"conftest.py"}


def test_test_folders_are_no_packages(test_modules):
    """Tests are found by path; a package would let them import each other by accident."""
    assert [module.name for module in test_modules if module.name.endswith("__init__.py")] == []


# --- the rules catch what they are for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "/".join(("see ", "home", "kim", "notes")),
        "/".join(("cd ", "Users", "kim")),
        "/".join(('"', "root", '.cache"')),
        "/".join(("(", "work", "x)")),
        "\\".join(("C:", "Users", "kim")),
    ],
)
def test_a_path_of_one_machine_is_caught(text):
    assert lines_matching(f"first\n{text}\n", MACHINE_PATH) == [2]


@pytest.mark.parametrize(
    "text",
    [
        "/".join(("s3:", "", "bucket", "home", "x")),
        "/".join(("tests", "work", "x")),
        "~/data",
        "`/metrics`",
        "file:///data/in",
    ],
)
def test_other_paths_are_left_alone(text):
    assert lines_matching(text, MACHINE_PATH) == []


@pytest.mark.parametrize("host", ["https://py" + "pi.org/simple", "--index" + "-url x", "PIP_INDEX" + "_URL=x"])
def test_a_package_host_is_caught(host):
    assert lines_matching(host, PACKAGE_HOST) == [1]


def test_both_sides_of_a_conflict_are_caught():
    assert lines_matching(f"{'<' * 7} HEAD\na\n{'=' * 7}\nb\n{'>' * 7} theirs\n", CONFLICT) == [1, 5]


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("def _f(): ...", ["_f"]),
        ("def _f(): return _f()", ["_f"]),
        ("class A:\n    def _f(self): ...", ["_f"]),
        ("class A:\n    @staticmethod\n    def _f(): ...", ["_f"]),
        ("class _A: ...", ["_A"]),
        ("def _f(): ...\n_f()", []),
        ("class A:\n    def _f(self): ...\n    def g(self): self._f()", []),
        ("@registry.add\ndef _f(): ...", []),
        ("def __getattr__(name): ...", []),
        ("def _f(): ...\ngetattr(x, '_f')", []),
    ],
)
def test_a_dead_private_function_is_caught(plant, text, dead):
    tree = plant(text).tree
    assert [name for _, name in dead_private_definitions(tree, names_used(tree))] == dead


@pytest.mark.parametrize(
    "text",
    [
        "import penstock",
        "from penstock import runtime",
        "from penstock.plan import graph",
        "def f():\n    import penstock.spark.host",
        "import penstock.corefoo",
    ],
)
def test_an_import_beyond_the_core_is_caught(plant, text):
    assert imports_beyond(plant(text).tree, ("penstock.core", "penstock.settings"))


@pytest.mark.parametrize(
    "text",
    ["from penstock.core import ids", "from penstock import settings", "import penstock.core.ids", "import pytest"],
)
def test_imports_of_the_core_are_left_alone(plant, text):
    assert imports_beyond(plant(text).tree, ("penstock.core", "penstock.settings")) == []


@pytest.mark.parametrize(
    ("path", "module"),
    [("src/penstock/core/ids.py", "penstock.core.ids"), ("src/penstock/core/__init__.py", "penstock.core")],
)
def test_a_file_knows_its_module(path, module):
    assert module_of(PurePosixPath(path)) == module


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("src/penstock/connectors/parquet.py", True),
        ("src/penstock/testing.py", True),
        ("src/penstock/core/__init__.py", True),
        ("src/penstock/__main__.py", True),
        ("src/penstock/core/ids.py", False),
    ],
)
def test_entry_points_need_no_importer(path, reached):
    assert is_entry_point(PurePosixPath(path)) is reached


def test_imports_are_found_in_every_form(plant):
    tree = plant("import a.b\ndef f():\n    from c import d, e as g\n").tree
    assert [name for _, name in imported_modules(tree)] == ["a.b", "c", "c.d", "c.e"]
