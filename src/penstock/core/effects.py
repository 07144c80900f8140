"""Base types of what goes into a machine and what comes out of it.

Every machine of the core has the shape

    handle(event, now) -> list of effects        synchronous, runs to completion
    next_deadline()    -> Instant or None        the latest time at which `Ticked` must be fed in
    validate()         -> None, or InvariantError

A machine never acts. Its driver performs the effects in list order and feeds results back as events: durability is an
event (`…Stored` follows `Store…`), and only the handler of that event may emit what depends on it. A machine never
raises for what a peer did; it raises `InvariantError` for our own bugs.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from penstock.core.ids import Instant


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, told to a machine in its own process."""


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something a machine wants done."""


class Ticked(Event, frozen=True, kw_only=True):
    """Time has passed: `now` has reached the machine's deadline (or just moved)."""


EventT = TypeVar("EventT", contravariant=True)
EffectT = TypeVar("EffectT")


class Machine(Protocol[EventT, EffectT]):
    """The contract that every machine of the core keeps."""

    def handle(self, event: EventT, now: Instant) -> list[EffectT]:
        """Take one event in; say what to do. `now` never goes back."""
        ...

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if only an event can help."""
        ...

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        ...
