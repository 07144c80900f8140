"""Base types of events, which go into a machine, and of effects, which come out of a machine.

Every machine of the core has the shape

    handle(event, now) -> list of effects        synchronous, runs to completion
    next_deadline()    -> Instant or None        the latest time at which `Ticked` must be fed in
    validate()         -> None, or InvariantError

A machine never acts. Its driver performs the effects in list order and feeds results back as events. Durability is an
event: `…Stored` follows `Store…`, and an effect that needs the stored fact is emitted only by the handler of `…Stored`.
A machine never raises because of what another process did. A machine raises `InvariantError` for a bug of this package.
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
    """Time has passed. The machine's deadline may have come, or may still lie ahead of `now`."""


EventT = TypeVar("EventT", contravariant=True)
EffectT = TypeVar("EffectT")


class Machine(Protocol[EventT, EffectT]):
    """The contract that every machine of the core keeps."""

    def handle(self, event: EventT, now: Instant) -> list[EffectT]:
        """Take one event in and return the effects to perform. `now` never goes back."""
        ...

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if the machine waits for no time, only for events."""
        ...

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        ...
