"""What an operator needs of a back end for keyed state, and what every back end promises.

One back end holds the keyed state and the timers of one operator of one subtask. The life of a back end:

1. The back end is made from a `StateContext`, which names every state that the function declares.
2. `restore` reads the files of old subtasks and keeps the entries of the back end's own key groups. `restore` runs off
   the loop, once, or never.
3. On the loop: `set_key` chooses the key whose entries and timers are then read and written. `snapshot` freezes the
   whole state, in a time that does not grow with the state, and returns work that writes the frozen state. The work
   runs off the loop while the loop goes on changing the state. `maintain` does small pieces of upkeep.
4. `close` is called once, also after a failure. The work of a snapshot may still be under way then, and may fail.

Rules that the contract suite (`tests/contracts`) holds every back end to:

* Tables know nothing of defaults, types and time: handles add them, in the same way for all back ends
  (`penstock.state.handles`). `get` returns the value that was put, equal and of the same types, also after a restore.
* A caller that got a value may change the value in place, within the same call for the key. Such a change never reaches
  a snapshot that was taken before. Whether the change reaches the state without a `put` is undefined.
* An entry of a state with a TTL is a pair `(value, written_ms)`. `ttl_expired` says when the entry has expired. Handles
  hide an expired entry; the back end leaves it out of snapshots and removes it in the background.
* A snapshot is the state at the moment `snapshot` was called: every entry that existed then, and no later entry. That
  holds however many snapshots are under way at once, and whether they complete or not.
* States that a snapshot has and the function does not declare are kept, and written again with the next snapshot,
  unless the context says that they are dropped. A state that is declared with another kind or another type than the
  snapshot has is refused with `UsageError`; integers and floats may become wider.
* With `CheckpointOptions.canonical` the snapshot is in the canonical format (`penstock.state.format`), which every back
  end can restore: one file; or several files, if the state is too large for one file to be made in memory.
* Without `CheckpointOptions.canonical` a back end may write a format of its own, with private files (`StateWriter.put`)
  and shared files (`StateWriter.put_shared`). A later snapshot refers to a shared file again by `reused(file)`, if a
  checkpoint with that file has completed and `options.full` is not set.
* An empty state is no file.

Key groups are not computed here: `set_key` is given the key group of a key, and the context has a function for the key
groups of key columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.state import StateSpec, Ttl
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.messages import StateFile
from penstock.ports import Frame
from penstock.settings import StateSettings

Key = Any
"""The value of the key column; or a tuple of values, if the key has several columns. Equal keys are equal values: there
is one NaN (`penstock.state.keys.NAN`) and one zero."""

GroupsOf = Callable[[pa.RecordBatch], npt.NDArray[np.int32]]
"""The key group of every row of a batch of key columns."""


class _Missing:
    """Stands for "no entry", because None may be a value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class _NoKey:
    """The current key while there is no current key. To look up an entry by this key is a mistake in the user's
    code."""

    def __hash__(self) -> NoReturn:
        raise UsageError(
            "keyed state and timers were used where there is no key",
            hint="use keyed state and timers in on_row and on_timer, which are called for one key; not in open, on_end "
            "or on_broadcast",
        )

    def __eq__(self, other: object) -> bool:
        return self is other


NO_KEY: Any = _NoKey()


class StateWriter(Protocol):
    """Where the asynchronous part of a snapshot writes its bytes. Calls block."""

    def put(self, data: Frame) -> StateFile:
        """Make `data` durable (small data stays inline) and return its handle, which belongs to this snapshot alone."""
        ...

    def put_shared(self, data: Frame, key: str) -> StateFile:
        """Make `data` durable in a shared file, which later checkpoints may refer to again. No other content of the job
        ever has the same `key`. In a savepoint, which shares no file, the same as `put`."""
        ...


class StateReader(Protocol):
    """Where a restore gets bytes from. Calls block."""

    def get(self, file: StateFile) -> bytes:
        """The bytes of a handle, checked against their checksum. Raises `CorruptFile` or `StorageError`."""
        ...

    def pieces(self, file: StateFile) -> Iterator[bytes]:
        """The bytes of a handle, in pieces. Raises `StorageError`. Raises `CorruptFile` after the last piece if the
        checksum does not fit, so no piece may be believed before the end."""
        ...


def reused(file: StateFile) -> StateFile:
    """A reference to a shared file that an earlier checkpoint has uploaded."""
    return msgspec.structs.replace(file, placeholder=True, inline=None)


@dataclass(frozen=True, kw_only=True)
class StateContext:
    """The operator and subtask that a back end belongs to, and the shape of their state."""

    operator: str
    """The operator's id, which is the same after a restart and with any parallelism."""
    name: str
    """The operator's name, for people."""
    subtask: int
    keys: pa.Schema
    """The key columns."""
    groups: int
    """How many key groups the job has."""
    own_groups: tuple[int, int]
    """First and last key group of this subtask, inclusive."""
    groups_of: GroupsOf
    specs: tuple[StateSpec, ...]
    """Every keyed state of the function, each name once."""
    now: Callable[[], Instant]
    """The time of the loop's turn. To be called on the loop only."""
    settings: StateSettings
    dropped: tuple[str, ...] = ()
    """States that a restore leaves out; none of them is in `specs`."""
    unpickles: bool = True
    """Whether pickled objects are unpickled. If not, they are read as `Pickle`s, so that reading a snapshot as data
    runs no code of the snapshot."""


class ValueTable(ABC):
    """One entry for the current key."""

    @abstractmethod
    def get(self) -> Any:
        """The entry, or `MISSING`."""

    @abstractmethod
    def put(self, entry: Any) -> None:
        """Replace the entry."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the entry, if there is one."""


class ListTable(ABC):
    """Entries in order for the current key."""

    @abstractmethod
    def get(self) -> list[Any]:
        """All entries, in a new list. The caller may change the list."""

    @abstractmethod
    def put(self, entries: list[Any]) -> None:
        """Replace all entries. The caller must not use the list any more."""

    @abstractmethod
    def append(self, entry: Any) -> None:
        """Add one entry at the end."""

    @abstractmethod
    def remove(self) -> None:
        """Remove all entries."""


class MapTable(ABC):
    """A map for the current key: each entry has a map key of its own."""

    @abstractmethod
    def get(self, key: Any) -> Any:
        """The entry of `key`, or `MISSING`."""

    @abstractmethod
    def put(self, key: Any, entry: Any) -> None:
        """Add or replace an entry."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove an entry, if there is one."""

    @abstractmethod
    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries, in any order. Entries may be changed while the iterator is read."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""


class TimerKind(Enum):
    """Which time a timer waits for. The value is the kind's name in snapshots."""

    EVENT_TIME = "event-time"
    PROCESSING_TIME = "processing-time"


class TimerTable(ABC):
    """The timers of all keys. A key has at most one timer of a kind for a time."""

    @abstractmethod
    def add(self, kind: TimerKind, time_us: int) -> None:
        """Set a timer for the current key."""

    @abstractmethod
    def remove(self, kind: TimerKind, time_us: int) -> None:
        """Remove a timer of the current key. Nothing happens if the timer is not set."""

    @abstractmethod
    def of_key(self, kind: TimerKind) -> list[int]:
        """The times of the current key's timers, in order."""

    @abstractmethod
    def first(self, kind: TimerKind) -> int | None:
        """The time of the earliest timer of all keys; None if there is no timer."""

    @abstractmethod
    def last(self, kind: TimerKind) -> int | None:
        """The time of the latest timer of all keys; None if there is no timer. Called once, at the end of the data."""

    @abstractmethod
    def pop_due(self, kind: TimerKind, until_us: int) -> tuple[int, Key, int] | None:
        """Remove the first timer at or before `until_us`. Returns its time, key and key group; None if no timer is due.

        Timers come in order of time. Timers of the same time come in order of key: null first, then ascending (NaN
        last), column by column.
        """


SnapshotFiles = Callable[[StateWriter], tuple[StateFile, ...]]
"""The asynchronous part of a snapshot: writes the frozen state and returns the handles of the files."""


class KeyedBackend(ABC):
    """The keyed state of one operator of one subtask."""

    timers: TimerTable

    @abstractmethod
    def set_key(self, key: Key, group: int) -> None:
        """`key` is the current key from now on: tables and timers are the key's."""

    @abstractmethod
    def unset_key(self) -> None:
        """There is no current key: to use tables, or the methods of timers for the current key, raises `UsageError`."""

    @abstractmethod
    def key_group(self) -> int | None:
        """The key group of the current key; None if there is no current key."""

    @abstractmethod
    def value_table(self, name: str) -> ValueTable:
        """The table of a declared value, reducing or aggregating state."""

    @abstractmethod
    def list_table(self, name: str) -> ListTable:
        """The table of a declared list state."""

    @abstractmethod
    def map_table(self, name: str) -> MapTable:
        """The table of a declared map state."""

    @abstractmethod
    def restore(self, snapshots: Sequence[Sequence[StateFile]], reader: StateReader) -> None:
        """Take in the state that old subtasks saved, each with its files. Only the entries of this subtask's key groups
        are taken. Blocks.

        Raises:
            CorruptFile: a file is cut short, was changed, was not written by this package, or has a newer format.
            UsageError: a state does not fit its declaration, or the files are in another back end's own format.

        """

    @abstractmethod
    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:
        """Freeze the state and return the work that writes the frozen state. The work is run at most once, and may
        never be run."""

    @abstractmethod
    def completed(self, checkpoint: CheckpointId) -> None:
        """The job has completed `checkpoint`: later snapshots may refer to the shared files of this checkpoint."""

    @abstractmethod
    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete. The work of its snapshot may be under way, may be done, or may never be
        run."""

    @abstractmethod
    def maintain(self, budget: int) -> bool:
        """Do about `budget` small steps of upkeep, such as removing expired entries. Returns whether more is to be
        done."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources of the back end."""


class TabledBackend(KeyedBackend):
    """A back end whose tables are in a dict, by the names of their states."""

    _tables: Mapping[str, Any]

    def value_table(self, name: str) -> ValueTable:
        """The table of a value, reducing or aggregating state."""
        found = self._tables[name]
        assert isinstance(found, ValueTable)
        return found

    def list_table(self, name: str) -> ListTable:
        """The table of a list state."""
        found = self._tables[name]
        assert isinstance(found, ListTable)
        return found

    def map_table(self, name: str) -> MapTable:
        """The table of a map state."""
        found = self._tables[name]
        assert isinstance(found, MapTable)
        return found


def ttl_expired(ttl: Ttl, written_ms: int, now: int) -> bool:
    """Whether an entry has expired at `now`. `written_ms` is when the entry was last written, or last read if reads
    renew the entry."""
    return now - written_ms >= ttl.duration_ms
