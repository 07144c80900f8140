"""The states that a database holds: the number and the type of each state.

A state that comes into the catalog gets the number above the highest number of the catalog. Numbers below `FIRST_STATE`
are for timers. A state that the program does not declare any more stays in the catalog, and its entries stay in the
database.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from penstock.api.state import StateKind, StateSpec, Ttl
from penstock.core.errors import CorruptFile, UsageError
from penstock.state.backend import StateContext
from penstock.state.format import check_fits

TIMERS_BY_TIME = 0
TIMERS_BY_KEY = 1
FIRST_STATE = 16
LAST_STATE = 0xFFFF


class StateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One state, as a snapshot describes it. New fields: at the end, with a default."""

    name: str
    number: int
    kind: str
    value_type: bytes | None
    """The type of the values, as an Arrow schema of one field; None if values are any objects."""
    map_key_type: bytes | None = None
    ttl_ms: int | None = None
    ttl_reads: bool = False
    timed: bool = False
    """Whether entries may have a time of writing in front of the value. Entries keep their time when the program does
    not declare a TTL any more."""
    timed_since_ms: int | None = None
    """When the state got its TTL. An entry with an earlier time, or without a time, counts as written at this time.
    None: the time of each entry counts."""

    def spec(self) -> StateSpec:
        """The declaration of the state."""
        return StateSpec(
            name=self.name,
            kind=StateKind(self.kind),
            type=_read_type(self.value_type),
            map_key=_read_type(self.map_key_type),
            ttl=None if self.ttl_ms is None else Ttl(duration_ms=self.ttl_ms, renewed_by_reads=self.ttl_reads),
        )


class Catalog:
    """The states of one database."""

    def __init__(self, entries: Iterable[StateEntry] = ()) -> None:
        self._entries = {entry.name: entry for entry in entries}

    @property
    def entries(self) -> tuple[StateEntry, ...]:
        """Every state, in the order of the numbers."""
        return tuple(sorted(self._entries.values(), key=lambda entry: entry.number))

    def number_of(self, name: str) -> int:
        """The number of a state that is in the catalog."""
        return self._entries[name].number

    def declare(self, specs: Iterable[StateSpec]) -> None:
        """Add the declared states that are not in the catalog yet."""
        for spec in specs:
            if spec.name not in self._entries:
                self._entries[spec.name] = _entry(spec, self._next_number())

    def take_in(self, found: Iterable[tuple[StateSpec, StateEntry | None]], context: StateContext, *, now: int) -> None:
        """Add states of a snapshot. Each state comes with its entry in the catalog of the snapshot; None if the
        snapshot has no catalog. A state that the program declares gets the program's declaration. Raises `UsageError`
        if the state of the snapshot does not fit the declaration."""
        declared = {spec.name: spec for spec in context.specs}
        for old_spec, old in found:
            spec = declared.get(old_spec.name, old_spec)
            check_fits(old_spec, spec, context)
            mine = self._entries.get(spec.name)
            number = self._next_number() if mine is None else mine.number
            since = (
                now if spec.ttl is not None and old_spec.ttl is None else None if old is None else old.timed_since_ms
            )
            earlier = None if mine is None else mine.timed_since_ms
            self._entries[spec.name] = msgspec.structs.replace(
                _entry(spec, number),
                timed=spec.ttl is not None or any(e is not None and e.timed for e in (old, mine)),
                timed_since_ms=max((s for s in (since, earlier) if s is not None), default=None),
            )

    def adopt(self, entries: Iterable[StateEntry]) -> None:
        """Replace the catalog with the entries of a snapshot whose database is taken over. The numbers stay."""
        self._entries = {entry.name: entry for entry in entries}

    def drop(self, name: str) -> None:
        """Remove a state whose entries have been removed from the database."""
        del self._entries[name]

    def _next_number(self) -> int:
        number = max((entry.number + 1 for entry in self._entries.values()), default=FIRST_STATE)
        if number > LAST_STATE:
            raise UsageError(
                f"a step has had more than {LAST_STATE - FIRST_STATE + 1} states, which is the limit",
                hint="give the step another name, so that it starts without state",
            )
        return number


def _entry(spec: StateSpec, number: int) -> StateEntry:
    return StateEntry(
        name=spec.name,
        number=number,
        kind=spec.kind.value,
        value_type=_written_type(spec.type),
        map_key_type=_written_type(spec.map_key),
        ttl_ms=None if spec.ttl is None else spec.ttl.duration_ms,
        ttl_reads=spec.ttl is not None and spec.ttl.renewed_by_reads,
        timed=spec.ttl is not None,
    )


def _written_type(kind: pa.DataType | None) -> bytes | None:
    return None if kind is None else bytes(pa.schema([pa.field("type", kind)]).serialize().to_pybytes())


def _read_type(data: bytes | None) -> pa.DataType | None:
    if data is None:
        return None
    try:
        found: pa.DataType = pa.ipc.read_schema(pa.py_buffer(data)).field(0).type
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise CorruptFile(f"the type of a state in the snapshot cannot be read: {error}") from error
    return found
