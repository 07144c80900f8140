"""Whatever the package declares is used by the package: not by nobody, and not by tests alone.

Names are compared, not what they mean: a name that is declared twice and used once passes. That is enough to find what
was left behind, and needs no list of exceptions beside a short one.

A declaration is used if its name is read anywhere in the package, or in the scripts beside it, but inside itself. To
set a field is not to read it; nor is to import a name. Exempt are the public surface, and what a base class asks for.
A field that is off unless somebody says otherwise is *fed* if anybody in the package does.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SURFACE = Path(__file__).with_name("public_surface.txt")

# Decorators that leave a function to be called by its name. Any other may register it somewhere.
PLAIN_DECORATORS = {
    *("property", "cached_property", "staticmethod", "classmethod", "override", "contextmanager", "cache"),
    *("abstractmethod", "setter", "dataclass", "at_user_line", "wraps", "final", "total_ordering"),
}
# Bases that ask for no method by a name of their own.
PLAIN_BASES = {
    *("ABC", "Protocol", "Generic", "Struct", "NamedTuple", "Enum", "IntEnum", "StrEnum", "object"),
    *("Exception", "BaseException"),
}

# Used by nobody in the package, and there on purpose: by name, or all that is in a class.
ALLOWED = {
    "AcknowledgeIgnored": "for the log: what tests of the coordinator compare",
    "CheckpointEdge.blocking": "in the bytes of records that were written once, and are compared with today's",
    "Machine": "the contract that every machine of the core keeps, written once to be read",
    "ProcessorList": "what PySpark calls it: processors of users call it so",
    "ProcessorMap": "what PySpark calls it: processors of users call it so",
    "Spread": "written as a whole for whoever asks by REST or `--json`",
    "SubtasksView": "written as a whole, as `Spread` is",
    "TaskCheckpoints.remembered_aborts": "that it is bounded is seen by tests only",
}


@dataclass(frozen=True)
class Declared:
    """Something that has a name in a module."""

    name: str
    owner: str | None
    """The class that it is in."""
    module: str
    line: int
    inside: int
    """How often it reads its own name."""

    @property
    def title(self) -> str:
        return self.name if self.owner is None else f"{self.owner}.{self.name}"


def names_read(tree: ast.AST) -> tuple[Counter[str], Counter[str]]:
    """How often each name is read by itself, and how often as an attribute: of an object, of a module, in a pattern, or
    as a text by which it may be looked up."""
    alone: Counter[str] = Counter()
    of_something: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                alone[name] += 1
            case ast.Attribute(attr=name, ctx=ast.Load()):
                of_something[name] += 1
                if isinstance(node.value, ast.Name) and node.value.id.islower():
                    alone[name] += 1  # it may be of a module
            case ast.alias(name=name, asname=str()):
                alone[name] += 1  # it is read by another name
            case ast.MatchClass(kwd_attrs=names):
                of_something.update(names)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "attrgetter" | "methodcaller"), args=args):
                of_something.update(arg.value for arg in args if isinstance(arg, ast.Constant))
            case _:
                pass
    return alone, of_something


def declarations(tree: ast.Module, module: str) -> Iterator[Declared]:
    for statement in tree.body:
        yield from _declared(statement, None, module)


def _declared(statement: ast.stmt, owner: str | None, module: str) -> Iterator[Declared]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if _is_plain(statement.decorator_list):
                inside = names_read(statement)[owner is not None][name]
                yield Declared(name, owner, module, statement.lineno, inside)
        case ast.ClassDef(name=name):
            if _is_plain(statement.decorator_list):
                inside = names_read(statement)[owner is not None][name]
                yield Declared(name, owner, module, statement.lineno, inside)
            for inner in statement.body:
                yield from _declared(inner, name, module)
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield Declared(name, owner, module, statement.lineno, 0)
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield Declared(target.id, owner, module, statement.lineno, 0)
        case ast.If():
            for inner in [*statement.body, *statement.orelse]:
                yield from _declared(inner, owner, module)
        case _:
            pass


def _is_plain(decorators: Iterable[ast.expr]) -> bool:
    return {re.split(r"[.(]", ast.unparse(d).partition("(")[0])[-1] for d in decorators} <= PLAIN_DECORATORS


def bases_by_class(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {re.split(r"\[", ast.unparse(base))[0].rpartition(".")[2] for base in node.bases}
                found.setdefault(node.name, set()).update(names)
    return found


def all_bases(kind: str, bases: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = [kind]
    while open_:
        for base in bases.get(open_.pop(), ()):
            if base not in found:
                found.add(base)
                open_.append(base)
    return found


def public_classes_and_names(surface: str) -> tuple[set[str], set[str]]:
    """The classes of the public surface, and its functions and values."""
    classes = set(re.findall(r"^    (?:class|enum) (\w+)", surface, re.M))
    return classes, set(re.findall(r"^    (?:function|value|module) (\w+)", surface, re.M))


def unused(trees: dict[str, ast.Module], scripts: Iterable[ast.Module], surface: str) -> list[Declared]:
    read: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for tree in [*trees.values(), *scripts]:
        for total, found in zip(read, names_read(tree), strict=True):
            total.update(found)
    declared = [each for module, tree in trees.items() for each in declarations(tree, module)]
    bases = bases_by_class(trees.values())
    members: dict[str, set[str]] = {}
    for each in declared:
        if each.owner is not None:
            members.setdefault(each.owner, set()).add(each.name)
    classes, names = public_classes_and_names(surface)

    def is_asked_for(each: Declared) -> bool:
        """Whether a base of its class asks for it: one of ours by its name, and another by whatever name."""
        above = all_bases(each.owner or "", bases)
        if "NamedTuple" in above:
            # Its fields have places, too.
            return True
        foreign = {base for base in above if base not in bases} - PLAIN_BASES
        return bool(foreign) or any(each.name in members.get(base, ()) for base in above)

    def is_public(each: Declared) -> bool:
        if each.owner is None:
            return each.name in names | classes
        # What a public class has of a base that is not public is its own.
        return each.owner in classes or any(each.owner in all_bases(kind, bases) for kind in classes)

    return [
        each
        for each in declared
        if read[each.owner is not None][each.name] - each.inside <= 0
        and not each.name.startswith("__")
        and not is_public(each)
        and not is_asked_for(each)
    ]


def is_allowed(each: Declared) -> bool:
    return each.title in ALLOWED or each.owner in ALLOWED


# --- fields that nobody feeds ----------------------------------------------------------------------------------------


def names_given(tree: ast.AST) -> Iterator[str]:
    """Names that a value is given to: by keyword, as an attribute, in a class, or in a dict that may be handed over as
    keywords."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Dict(keys=keys):
                yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))
            case ast.ClassDef(body=body):
                # A class that sets what its base has switched off.
                for statement in body:
                    if isinstance(statement, ast.FunctionDef):
                        yield statement.name
                    elif isinstance(statement, ast.Assign):
                        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
            case _:
                pass


def fields_that_are_off(tree: ast.Module, module: str) -> Iterator[Declared]:
    """Annotated fields of classes whose default is False or None; not those of tuples, which may be given by place."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or "NamedTuple" in map(ast.unparse, node.bases):
            continue
        for statement in node.body:
            match statement:
                case ast.AnnAssign(annotation=ast.Subscript(value=ast.Name(id="ClassVar"))):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=False | None)):
                    yield Declared(name, node.name, module, statement.lineno, 0)
                case _:
                    pass


def never_fed(trees: dict[str, ast.Module], surface: str) -> list[Declared]:
    given = {name for tree in trees.values() for name in names_given(tree)}
    classes, _ = public_classes_and_names(surface)
    fields = [each for module, tree in trees.items() for each in fields_that_are_off(tree, module)]
    return [each for each in fields if each.name not in given and each.owner not in classes]


# --- the rules over the source ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trees(package_modules) -> dict[str, ast.Module]:
    return {module.name: module.tree for module in package_modules}


@pytest.fixture(scope="module")
def surface() -> str:
    return SURFACE.read_text("utf-8")


@pytest.fixture(scope="module")
def found(trees, scripts, surface) -> list[Declared]:
    return unused(trees, [script.tree for script in scripts], surface)


def test_whatever_is_declared_is_used(found):
    assert [f"{each.module}:{each.line} {each.title}" for each in found if not is_allowed(each)] == []


def test_what_is_allowed_to_be_unused_is(found):
    needed = {title for each in found for title in (each.title, each.owner)}
    assert sorted(set(ALLOWED) - needed) == []


def test_every_field_that_is_off_is_switched_on_by_somebody(trees, surface):
    assert [
        f"{each.module}:{each.line} {each.title}" for each in never_fed(trees, surface) if not is_allowed(each)
    ] == []


# --- the rules catch what they are for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("def f(): ...", ["f"]),
        ("def f(): return f()", ["f"]),
        ("LIMIT = 3", ["LIMIT"]),
        ("LIMIT: int = 3", ["LIMIT"]),
        ("class A: ...", ["A"]),
        ("class A:\n    def f(self): ...\nA()", ["A.f"]),
        ("class A:\n    x: int = 0\na = A(x=1)\nprint(a)", ["A.x"]),
        ("class A:\n    x: int = 0\nA().x = 2", ["A.x"]),
        ("class Color(Enum):\n    RED = 1\nColor(1)", ["Color.RED"]),
        ("from elsewhere import f\ndef g(): ...\n__all__ = ['g']", ["g"]),
        ("def f(): ...\nclass A: ...\nA().f()", ["f"]),
        ("class A:\n    def f(self): ...\nA()\nprint(f)", ["A.f"]),
        ("def f(): ...\nf()", []),
        ("def f(): ...\nmodule.f()", []),
        ("class A:\n    x: int = 0\nA().x.y", []),
        ("class A:\n    x: int = 0\nmatch A():\n    case A(x=1): ...", []),
        ("class A:\n    def f(self): ...\ngetattr(A(), 'f')()", []),
        ("class A(ABC):\n    def f(self): ...\nclass B(A):\n    def f(self): ...\nB().f()", []),
        ("class A(Thread):\n    def run(self): ...\nA().start()", []),
        ("class A(NamedTuple):\n    x: int\n(x,) = A(1)", []),
        ("@main.command()\ndef f(): ...", []),
        ("class Public:\n    def f(self): ...", []),
        ("class Base:\n    def f(self): ...\nclass Public(Base): ...", []),
        ("def public(): ...", []),
        ("class A:\n    def __enter__(self): ...\nA()", []),
    ],
)
def test_what_nobody_uses_is_caught(plant, text, caught):
    surface = "penstock\n    class Public()\n    function public() -> None\n"
    assert [each.title for each in unused({"planted": plant(text).tree}, [], surface)] == caught


def test_what_only_an_overriding_class_declares_is_found_by_its_contract(plant):
    text = "class A(ABC):\n    def f(self): ...\nclass B(A):\n    def f(self): ...\nB()"
    assert [each.title for each in unused({"planted": plant(text).tree}, [], "")] == ["A.f"]


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("class A:\n    x: bool = False\nA()", ["A.x"]),
        ("class A:\n    x: int | None = None\nA().x", ["A.x"]),
        ("class A:\n    x: bool = False\nA(x=True)", []),
        ("class A:\n    x: bool = False\nA().x = True", []),
        ("class A:\n    x: bool = False\nA(**{'x': True})", []),
        ("class A:\n    x: int = 3\nA()", []),
        ("class Public:\n    x: bool = False\nPublic()", []),
    ],
)
def test_a_field_that_nobody_switches_on_is_caught(plant, text, caught):
    found = never_fed({"planted": plant(text).tree}, "penstock\n    class Public()\n")
    assert [each.title for each in found] == caught
