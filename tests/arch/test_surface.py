"""The public surface is what `public_surface.txt` says, so that a change of it shows in the diff.

Public are `penstock`, `penstock.testing` and the modules of `penstock.connectors`. After a change on purpose:

    python tests/arch/test_surface.py --write
"""

from __future__ import annotations

import difflib
import enum
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

SURFACE = Path(__file__).with_name("public_surface.txt")
REGENERATE = "python tests/arch/test_surface.py --write"
HEADER = f"# Every public name and its signature. Written by `{REGENERATE}`; not by hand.\n"


def public_modules() -> list[str]:
    connectors = importlib.import_module("penstock.connectors")
    found = [m.name for m in pkgutil.walk_packages(connectors.__path__, "penstock.connectors.")]
    public = sorted(n for n in found if not n.rpartition(".")[2].startswith("_"))
    testing = ["penstock.testing"] if importlib.util.find_spec("penstock.testing") else []
    return ["penstock", *testing, *public]


def public_names(module: types.ModuleType) -> list[str]:
    """What `__all__` lists; without one, what the module itself defines and does not hide."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return sorted(name for name in own if not name.startswith("_"))


def describe_module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield name
    for public in public_names(module):
        yield from (f"    {line}" for line in describe(public, getattr(module, public)))
    yield ""


def describe(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, types.ModuleType):
        yield f"module {name}: {value.__name__}"
    elif isinstance(value, enum.EnumMeta):
        yield f"enum {name}: {', '.join(value.__members__)}"
    elif inspect.isclass(value):
        yield from describe_class(name, value)
    elif callable(value) and hasattr(value, "__module__") and not isinstance(value, types.GenericAlias):
        yield f"function {name}{signature(value)}"
    else:
        yield f"value {name}: {type(value).__name__}"


def describe_class(name: str, kind: type) -> Iterator[str]:
    bases = ", ".join(b.__name__ for b in kind.__bases__ if b is not object)
    yield f"class {name}{signature(kind)}" + (f" <- {bases}" if bases else "")
    for member in sorted(n for n in dir(kind) if not n.startswith("_")):
        owner = next((c for c in kind.__mro__ if member in vars(c)), kind)
        if not owner.__module__.startswith("penstock"):
            continue
        raw = vars(owner)[member]
        if isinstance(raw, property):
            yield f"    property {member}: {annotation_text(raw.fget.__annotations__.get('return', '?'))}"
        elif isinstance(raw, staticmethod | classmethod):
            yield f"    {type(raw).__name__} {member}{signature(raw.__func__)}"
        elif inspect.isfunction(raw):
            yield f"    method {member}{signature(raw)}"
        else:
            yield f"    attribute {member}"


def signature(function: Any) -> str:
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parts: list[str] = []
    has_star = False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parts.append("*")
            has_star = True
        has_star = has_star or parameter.kind is parameter.VAR_POSITIONAL
        text = marks.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {annotation_text(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {default_text(parameter.default)}"
        parts.append(text)
    returns = "" if found.return_annotation is found.empty else f" -> {annotation_text(found.return_annotation)}"
    return f"({', '.join(parts)}){returns}"


def annotation_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def default_text(value: Any) -> str:
    """A default as text that is the same in every process and Python version."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, datetime | timedelta):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(default_text(v) for v in value)})"
    return getattr(value, "__qualname__", f"<{type(value).__name__}>")


def current_surface() -> str:
    lines = [line for name in public_modules() for line in describe_module(name)]
    return HEADER + "\n" + "\n".join(lines).rstrip() + "\n"


def test_the_public_surface_is_the_recorded_one():
    recorded = SURFACE.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        recorded.splitlines(), current_surface().splitlines(), "recorded", "current", lineterm="", n=1
    )
    changed = "\n".join(difference)
    assert not changed, f"the public surface has changed; if on purpose: {REGENERATE}\n{changed}"


# --- the description shows what a caller can notice ------------------------------------------------------------------


class _Mode(enum.Enum):
    FAST = 1


class _Planted:
    def __init__(self, path: str, *, mode: _Mode = _Mode.FAST) -> None: ...

    @property
    def size(self) -> int:
        return 0

    def read(self, *columns: str, limit: int | None = None) -> bytes: ...

    def _hidden(self) -> None: ...


def test_a_class_is_described_by_all_that_a_caller_can_use():
    _Planted.__module__ = "penstock.planted"
    assert list(describe("Planted", _Planted)) == [
        "class Planted(path: str, *, mode: _Mode = _Mode.FAST) -> None",
        "    method read(self, *columns: str, limit: int | None = None) -> bytes",
        "    property size: int",
    ]


def test_names_come_from_all_or_from_what_the_module_defines():
    module = types.ModuleType("penstock.planted")
    module.f = types.FunctionType((lambda: 0).__code__, {"__name__": "penstock.planted"}, "f")
    module.path = Path
    module._g = module.f
    assert public_names(module) == ["f"]
    module.__all__ = ["path", "f"]
    assert public_names(module) == ["f", "path"]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {REGENERATE}")
    SURFACE.write_text(current_surface(), encoding="utf-8")
