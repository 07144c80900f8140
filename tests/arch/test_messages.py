"""Messages, elements, events and effects are frozen, keyword-only, documented, and in the union that decodes them.

msgspec inherits `frozen` and not `kw_only`; mypy sees neither unless the class says so itself. What is missing from a
union is refused by its receiver only at run time.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock.core
from penstock.core.effects import Effect, Event
from penstock.core.elements import AnyElement, Element
from penstock.core.messages import Credit, Message, ToMaster, ToSlot

for _found in pkgutil.walk_packages(penstock.core.__path__, "penstock.core."):
    importlib.import_module(_found.name)

BASES = (Message, Element, Event, Effect)


def descendants(base: type) -> Iterator[type]:
    for child in base.__subclasses__():
        yield child
        yield from descendants(child)


def in_core(kind: type) -> bool:
    return kind.__module__.startswith("penstock.core")


STRUCTS = sorted({k for k in descendants(msgspec.Struct) if in_core(k)}, key=lambda k: (k.__module__, k.__qualname__))
TO_MASTER, TO_SLOT, ELEMENTS = (set(typing.get_args(union)) for union in (ToMaster, ToSlot, AnyElement))
# Said by one slot to another; each kind has a frame of its own, so they need no union.
SLOT_TO_SLOT = {Credit}


def said_in_the_class_statement(kind: type) -> set[str]:
    """The options that the class itself sets to True."""
    tree = ast.parse(Path(inspect.getfile(kind)).read_text(encoding="utf-8"))
    statement = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    return {k.arg for k in statement.keywords if k.arg and isinstance(k.value, ast.Constant) and k.value.value is True}


def faults(kind: type[msgspec.Struct], said: set[str]) -> list[str]:
    found = []
    if not kind.__struct_config__.frozen:
        found.append("not frozen")
    if any(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(kind).parameters.values()):
        found.append("not keyword-only")
    found += [f"does not say {option}=True itself" for option in ("frozen", "kw_only") if option not in said]
    if not (kind.__dict__.get("__doc__") or "").strip():
        found.append("no docstring")
    return found


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda k: k.__qualname__)
def test_structs_of_the_core_are_frozen_keyword_only_and_documented(kind):
    assert faults(kind, said_in_the_class_statement(kind)) == []


@pytest.mark.parametrize("base", BASES, ids=lambda k: k.__name__)
def test_every_base_has_members(base):
    assert any(in_core(kind) for kind in descendants(base))


def test_every_message_is_in_the_union_of_its_direction():
    messages = {kind for kind in descendants(Message) if in_core(kind)}
    assert messages == TO_MASTER | TO_SLOT | SLOT_TO_SLOT
    assert len(messages) == len(TO_MASTER) + len(TO_SLOT) + len(SLOT_TO_SLOT), "a message goes one way only"


def test_every_element_is_in_the_union():
    assert {kind for kind in descendants(Element) if in_core(kind)} == ELEMENTS


@pytest.mark.parametrize("union", [ToMaster, ToSlot, AnyElement], ids=["ToMaster", "ToSlot", "AnyElement"])
def test_a_union_can_be_decoded(union):
    msgspec.msgpack.Decoder(union)
    tags = [kind.__struct_config__.tag for kind in typing.get_args(union)]
    assert len(tags) == len(set(tags))


@pytest.mark.parametrize(
    "kind", sorted(TO_MASTER | TO_SLOT | ELEMENTS, key=lambda k: k.__name__), ids=lambda k: k.__name__
)
def test_a_docstring_says_from_whom_to_whom(kind):
    if kind in TO_MASTER:
        expected = "Slot to master: "
    elif kind in TO_SLOT:
        expected = "Master to slot: "
    else:
        expected = "Upstream task to downstream task: "
    assert (kind.__doc__ or "").startswith(expected)


# --- the check catches what it is for --------------------------------------------------------------------------------


class _Thawed(msgspec.Struct):
    x: int


class _Positional(Message, frozen=True):
    """Anyone to anyone: nothing."""

    x: int


def test_a_thawed_undocumented_struct_is_caught():
    found = faults(_Thawed, said_in_the_class_statement(_Thawed))
    assert found[:2] == ["not frozen", "not keyword-only"]
    assert found[-1] == "no docstring"


def test_a_positional_message_is_caught():
    found = faults(_Positional, said_in_the_class_statement(_Positional))
    assert found == ["not keyword-only", "does not say kw_only=True itself"]
