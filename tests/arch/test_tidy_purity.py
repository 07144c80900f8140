"""The pure packages do nothing that depends on the process they run in, and nobody lets a set decide an order.

Import contracts and ruff ban modules and names; they cannot ban builtins, and do not know what is a set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

Finding = tuple[int, str]

BANNED_BUILTINS = {
    "hash": "differs from process to process for text: use the key hash of the storage format",
    "id": "an address: use an id type of core/ids.py",
    "open": "return an effect",
    "print": "return an effect",
    "input": "take it as an argument",
    "breakpoint": "leftover of a debugging session",
    "globals": "state belongs to a machine",
    "__import__": "import at the top",
}


def banned_builtins(tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in BANNED_BUILTINS:
            yield node.lineno, f"{node.id}: {BANNED_BUILTINS[node.id]}"


def asynchronous_code(tree: ast.AST) -> Iterator[Finding]:
    kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield node.lineno, "machines run to completion: return an effect instead of waiting"


# --- time and chance -------------------------------------------------------------------------------------------------

# Each shell has one module that makes them; everybody else is handed a clock or a number.
MAKERS_OF_TIME_AND_CHANCE = (
    "src/penstock/spark/clock.py",
    "src/penstock/sim/world.py",
    "src/penstock/connectors/kafka/clock.py",  # how long a cluster is waited for, and how old kept records are
    "src/penstock/storage/paths.py",  # names of temporary files, which no other process may use at the same time
)
# A command may time itself: it is the outermost process, and nothing in a job depends on it.
COMMANDS = ("src/penstock/cli/", "src/penstock/bench/", "src/penstock/terminal/")
TIME_AND_CHANCE = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time)(_ns)?|datetime\.(datetime|date)\.(now|utcnow|today)"
    r"|random\.\w+|numpy\.random\..*|uuid\.uuid\d|secrets\.\w+|os\.urandom"
)
TIME_OR_CHANCE_MODULE = re.compile(r"(time|datetime|random|numpy|uuid|secrets|os)\b")


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What a name in this file stands for: `np` for numpy, `perf_counter` for time.perf_counter."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def made_time_or_chance(tree: ast.AST) -> Iterator[Finding]:
    """Calls that read a clock or draw a number."""
    names = imported_names(tree)
    if not any(TIME_OR_CHANCE_MODULE.match(name) for name in names.values()):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            called = names.get(first, "") + dot + rest
            if TIME_AND_CHANCE.fullmatch(called):
                yield node.lineno, f"{called}: take a clock or a number from the shell"


# --- iteration over sets ---------------------------------------------------------------------------------------------

SET_TYPE = re.compile(r"^(collections\.abc\.|typing\.)?(set|frozenset|Set|FrozenSet|AbstractSet|MutableSet)\b")
DICT_OF_SETS = re.compile(r"^(dict|defaultdict|Mapping|MutableMapping)\[[^,\[\]]+(\[[^\]]*\])?, *(set|frozenset)\b")
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
LOOKUPS = {"get", "pop", "setdefault"}
# The result of these is the same whatever the order.
ORDER_FREE = {"sorted", "set", "frozenset", "sum", "any", "all", "min", "max", "len", "bool"}
ORDER_SHOWS = {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "deque", "dict", "str", "repr"}
ORDER_SHOWS_METHODS = {"join", "extend", "fromkeys", "extendleft", "chain", "from_iterable"}
FIX = "order differs from process to process: use sorted(...), or a dict as an ordered set"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class SetUses:
    """Finds where the order of a set shows, by what one module says about its own names."""

    def __init__(self, tree: ast.Module) -> None:
        self.findings: list[Finding] = []
        self._attributes: set[str] = set()
        self._attributes_of_sets: set[str] = set()
        self._returning: set[str] = set()
        self._learn_attributes(tree)
        self._scan(tree, names=set(), names_of_sets=set())

    def _learn_attributes(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    for field in node.body:
                        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                            self._note(field.target.id, field.annotation)
                case ast.AnnAssign(target=ast.Attribute(attr=name)):
                    self._note(name, node.annotation)
                case ast.Assign(targets=[ast.Attribute(attr=name)]) if _is_set_literal(node.value):
                    self._attributes.add(name)
                case ast.FunctionDef() if node.returns and SET_TYPE.match(ast.unparse(node.returns)):
                    is_property = any(ast.unparse(d).endswith("property") for d in node.decorator_list)
                    (self._attributes if is_property else self._returning).add(node.name)
                case _:
                    pass

    def _note(self, name: str, annotation: ast.expr) -> None:
        text = ast.unparse(annotation)
        if SET_TYPE.match(text):
            self._attributes.add(name)
        elif DICT_OF_SETS.match(text):
            self._attributes_of_sets.add(name)

    def _scan(self, scope: ast.AST, *, names: set[str], names_of_sets: set[str]) -> None:
        """Look at one scope with the names that are sets in it; nested functions see those too."""
        own = list(_own_nodes(scope))
        names, names_of_sets = set(names), set(names_of_sets)
        for name, annotation in _annotated(scope, own):
            names.discard(name)
            text = ast.unparse(annotation) if annotation is not None else ""
            if SET_TYPE.match(text):
                names.add(name)
            elif DICT_OF_SETS.match(text):
                names_of_sets.add(name)
        self._names, self._names_of_sets = names, names_of_sets
        for node in own:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.NamedExpr(target=ast.Name(id=name)):
                    if self._is_set(node.value):
                        names.add(name)
                case _:
                    pass
        for node in own:
            self._look(node)
        for node in own:
            if isinstance(node, Function | ast.Lambda | ast.ClassDef):
                self._scan(node, names=names, names_of_sets=names_of_sets)

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(attr=name):
                return name in self._attributes
            case ast.Subscript(value=value):
                return self._is_dict_of_sets(value)
            case ast.Call(func=ast.Name(id=name)):
                return name in ("set", "frozenset") or name in self._returning
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return (
                    (name in SET_METHODS and self._is_set(value))
                    or (name in LOOKUPS and self._is_dict_of_sets(value))
                    or name in self._returning
                )
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, SET_OPERATORS):
                return any(self._is_set(side) or _is_keys(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_set(body) or self._is_set(orelse)
            case ast.NamedExpr(value=value):
                return self._is_set(value)
            case _:
                return False

    def _is_dict_of_sets(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._names_of_sets
            case ast.Attribute(attr=name):
                return name in self._attributes_of_sets
            case _:
                return False

    def _look(self, node: ast.AST) -> None:
        shown: list[ast.expr] = []
        match node:
            case ast.For(iter=iterated):
                shown = [iterated]
            case ast.ListComp() | ast.DictComp():
                shown = [g.iter for g in node.generators]
            case ast.GeneratorExp() if not getattr(node, "order_free", False):
                shown = [g.iter for g in node.generators]
            case ast.Call(func=ast.Name(id=name)) if name in ORDER_SHOWS:
                shown = list(node.args)
            case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
                shown = [value]
            case ast.Call(func=ast.Attribute(attr=name)) if name in ORDER_SHOWS_METHODS:
                shown = list(node.args)
            case ast.Starred(value=value) if not getattr(node, "order_free", False):
                shown = [value]
            case ast.FormattedValue(value=value):
                shown = [value]
            case _:
                pass
        self.findings += [(e.lineno, f"{ast.unparse(e)}: {FIX}") for e in shown if self._is_set(e)]


def _is_set_literal(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in ("set", "frozenset")
        case _:
            return False


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def _annotated(scope: ast.AST, own: list[ast.AST]) -> Iterator[tuple[str, ast.expr | None]]:
    """The parameters of a scope and its annotated names."""
    if isinstance(scope, Function):
        arguments = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
        yield from ((argument.arg, argument.annotation) for argument in arguments)
    for node in own:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Every node of a scope, the heads of nested scopes included and their bodies not."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        _mark_order_free(node)
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _mark_order_free(node: ast.AST) -> None:
    """Tell the arguments of `sorted(...)`, `sum(...)` and the like that their order does not show."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE:
        for argument in node.args:
            argument.order_free = True  # type: ignore[attr-defined]
    elif isinstance(node, ast.Set):
        for element in node.elts:
            element.order_free = True  # type: ignore[attr-defined]


def iterations_over_sets(tree: ast.Module) -> list[Finding]:
    return sorted(set(SetUses(tree).findings))


# --- the rules over the source ---------------------------------------------------------------------------------------


def test_pure_modules_call_no_builtin_that_depends_on_the_process(breaking):
    assert breaking("pure_module", lambda file: banned_builtins(file.tree)) == {}


def test_pure_modules_are_synchronous(breaking):
    assert breaking("pure_module", lambda file: asynchronous_code(file.tree)) == {}


def test_only_the_shells_make_time_and_chance(breaking):
    found = breaking("package_module", lambda file: made_time_or_chance(file.tree))
    assert [name for name in found if name not in MAKERS_OF_TIME_AND_CHANCE and not name.startswith(COMMANDS)] == []


def test_no_set_decides_an_order(breaking):
    assert breaking("ordered_module", lambda file: iterations_over_sets(file.tree)) == {}


# --- the rules catch what they are for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["x = hash('a')", "seen = id(task)", "key = sorted(tasks, key=id)", "open('f')", "print(1)", "input()"],
)
def test_a_banned_builtin_is_caught(plant, text):
    assert [line for line, _ in banned_builtins(plant(f"y = 1\n{text}\n").tree)] == [2]


@pytest.mark.parametrize("text", ["class A:\n    id: int", "task.id", "f(id=3)", "def open_channel(): ..."])
def test_names_that_only_look_like_a_builtin_are_left_alone(plant, text):
    assert list(banned_builtins(plant(text).tree)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.monotonic()",
        "from time import perf_counter\nperf_counter()",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from random import Random\nRandom(3)",
        "import random\nrandom.random()",
        "import numpy as np\nnp.random.default_rng(1)",
        "import uuid\nuuid.uuid4()",
        "import secrets\nsecrets.token_hex(4)",
    ],
)
def test_a_clock_or_a_die_is_caught(plant, text):
    assert [line for line, _ in made_time_or_chance(plant(text).tree)] == [2]


@pytest.mark.parametrize("text", ["clock.now()", "def f(random: Random):\n    random.choice(x)", "world.time()"])
def test_a_clock_that_was_handed_in_is_left_alone(plant, text):
    assert list(made_time_or_chance(plant(text).tree)) == []


@pytest.mark.parametrize("text", ["async def f(): ...", "class A:\n    async def f(self): ..."])
def test_asynchronous_code_is_caught(plant, text):
    assert len(list(asynchronous_code(plant(text).tree))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: f(x)",
        "for x in {a.task for a in acks}: f(x)",
        "for x in set(xs): f(x)",
        "for x in set(xs) - set(ys): f(x)",
        "for x in a.keys() - b.keys(): f(x)",
        "[f(x) for x in frozenset(xs)]",
        "list({1, 2})",
        "tuple(set(xs))",
        "f(*set(xs))",
        "','.join({str(x) for x in xs})",
        "waiting = set(xs)\nfor x in waiting: f(x)",
        "def g(waiting: set[int]):\n    return [x for x in waiting]",
        "def g(waiting: frozenset[int] | None):\n    return tuple(f(x) for x in waiting)",
        "class A:\n    def g(self):\n        self._w: set[int] = set()\n        for x in self._w: f(x)",
        "class A:\n    def __init__(self):\n        self._w = set()\n    def g(self):\n        return list(self._w)",
        "class A:\n    w: frozenset[int]\ndef g(a):\n    return {x: 1 for x in a.w}",
        "class A:\n    w: dict[str, set[int]]\ndef g(a):\n    for x in a.w['k']: f(x)",
        "class A:\n    w: dict[str, set[int]]\ndef g(a):\n    for x in a.w.pop('k', None): f(x)",
        "def missing() -> set[int]: ...\ndef g():\n    return [x for x in missing()]",
        "class A:\n    @property\n    def w(self) -> set[int]: ...\n    def g(self):\n        return list(self.w)",
        "waiting = set(xs)\nwaiting.pop()",
        "waiting = set(xs)\ntext = f'{waiting} are missing'",
    ],
)
def test_a_set_that_decides_an_order_is_caught(plant, text):
    findings = iterations_over_sets(plant(text).tree)
    assert [line for line, _ in findings] == [len(text.splitlines())]


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({1, 2}): f(x)",
        "n = sum(x for x in set(xs))",
        "ok = all(f(x) for x in {1, 2})",
        "s = {f(x) for x in set(xs)}",
        "s = {*set(xs), 1}",
        "if x in {1, 2}: f(x)",
        "waiting = dict.fromkeys(xs)\nfor x in waiting: f(x)",
        "def g(xs: list[int]):\n    return [x for x in xs]",
        "def g():\n    xs = set()\n    return len(xs)\ndef h(xs):\n    return list(xs)",
        "class A:\n    w: dict[str, list[int]]\ndef g(a):\n    for x in a.w['k']: f(x)",
        "xs = [1]\nxs.pop()",
    ],
)
def test_sets_whose_order_does_not_show_are_left_alone(plant, text):
    assert iterations_over_sets(plant(text).tree) == []
