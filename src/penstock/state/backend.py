"""What an operator needs of a back end for keyed state, and what every back end promises.

One back end holds the keyed state and the timers of one operator of one subtask. Its life:

1. It is made from a `StateContext`, which names every state that the function declares.
2. `restore` reads the files of old subtasks and keeps what belongs to the own key groups. Off the loop, once, or never.
3. On the loop: `set_key` says whose state the tables and timers are; then they are read and written. `snapshot` freezes
   everything in a time that does not depend on how much there is, and returns work that writes what was frozen. The
   work runs off the loop, beside steps that go on changing the state. `maintain` does small pieces of upkeep.
4. `close`, once, also after a failure; work may still be under way then, and may fail.

Rules that the contract suite (`tests/contracts`) holds every back end to:

* Tables know nothing of defaults, types and time: that is done above them, the same way for all back ends
  (`penstock.state.handles`). What is put comes out again, equal and of the same types, also after a restore.
* What is got may be changed in place by the caller within the same call for the key. Such a change never reaches a
  snapshot that was taken before; whether it reaches the state without being put back is not said.
* An entry of a state with a TTL is a pair `(value, written_ms)`. `ttl_expired` says when it is over. Handles hide it
  from then on; the back end leaves it out of snapshots and removes it in the background.
* A snapshot is the state at the moment `snapshot` was called: every entry that was there, none that came later, however
  many snapshots are under way at once, and whatever becomes of them.
* States that a snapshot has and the function does not declare are kept, and written again with the next snapshot,
  unless the context says that they are dropped. A state that is declared with another kind or another type than the
  snapshot has is refused with `UsageError`; integers and floats may become wider.
* With `CheckpointOptions.canonical`, and in a savepoint unless the back end says otherwise, the snapshot is one file in
  the canonical format (`penstock.state.format`), which every back end can restore; or several such files, if it is too
  large to be made in memory at once. Snapshots of its own format may
  consist of several files, private ones (`StateWriter.put`) and shared ones (`StateWriter.put_shared`): a later
  snapshot refers to a shared file again by `reused(file)`, if a checkpoint that had it completed and `options.full` is
  not set.
* An empty state is no file.

Key groups are not computed here: `set_key` is told the group, and for what it has only as columns the context has a
function.
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
    """Says that there is no entry, where None is a value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class _NoKey:
    """The current key while there is none. Looking anything up by it is a mistake of the user's."""

    def __hash__(self) -> NoReturn:
        raise UsageError(
            "keyed state and timers were used where there is no key",
            hint="use them in on_row and on_timer, which are called for one key; not in open, on_end or on_broadcast",
        )

    def __eq__(self, other: object) -> bool:
        return self is other


NO_KEY: Any = _NoKey()


class StateWriter(Protocol):
    """Where the asynchronous part of a snapshot puts bytes. Calls block."""

    def put(self, data: Frame) -> StateFile:
        """Make `data` durable (small data stays inline) and return its handle, which belongs to this snapshot alone."""
        ...

    def put_shared(self, data: Frame, key: str) -> StateFile:
        """Make `data` durable where later checkpoints may refer to it again, under a key that no other content of the
        job ever has. In a savepoint, which shares nothing, the same as `put`."""
        ...


class StateReader(Protocol):
    """Where a restore gets bytes from. Calls block."""

    def get(self, file: StateFile) -> bytes:
        """The bytes of a handle, checked against their checksum. Raises `CorruptFile` or `StorageError`."""
        ...


def reused(file: StateFile) -> StateFile:
    """A reference to a shared file that an earlier checkpoint has uploaded."""
    return msgspec.structs.replace(file, placeholder=True, inline=None)


@dataclass(frozen=True, kw_only=True)
class StateContext:
    """Whose state it is, and how it is laid out."""

    operator: str
    """The operator's id, which is the same after a restart and at any parallelism."""
    name: str
    """What people call the operator."""
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
    """States that are left out of what is restored; none of them is in `specs`."""


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
        """All entries, in a list that is the caller's own."""

    @abstractmethod
    def put(self, entries: list[Any]) -> None:
        """Replace all entries. The list is the table's from then on."""

    @abstractmethod
    def append(self, entry: Any) -> None:
        """Add one entry at the end."""

    @abstractmethod
    def remove(self) -> None:
        """Remove all entries."""


class MapTable(ABC):
    """Entries by a key of their own for the current key."""

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
        """All entries, in any order. Entries may be changed while it is read."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""


class TimerKind(Enum):
    """Which time a timer waits for. The value is its name in snapshots."""

    EVENT_TIME = "event-time"
    PROCESSING_TIME = "processing-time"


class TimerTable(ABC):
    """The timers of all keys. A key has at most one timer of a kind for a time."""

    @abstractmethod
    def add(self, kind: TimerKind, time_us: int) -> None:
        """Set a timer for the current key."""

    @abstractmethod
    def remove(self, kind: TimerKind, time_us: int) -> None:
        """Take a timer of the current key back; nothing happens if it is not set."""

    @abstractmethod
    def of_key(self, kind: TimerKind) -> list[int]:
        """The times of the current key's timers, in order."""

    @abstractmethod
    def first(self, kind: TimerKind) -> int | None:
        """The time of the earliest timer of all keys; None if there is none."""

    @abstractmethod
    def last(self, kind: TimerKind) -> int | None:
        """The time of the latest timer of all keys; None if there is none. Asked for once, at the end of the data."""

    @abstractmethod
    def pop_due(self, kind: TimerKind, until_us: int) -> tuple[int, Key, int] | None:
        """Remove the first timer at or before `until_us`; its time, key and key group. None if there is none.

        In order of time; among those of one time in order of key: null first, then ascending (NaN last), by columns.
        """


SnapshotFiles = Callable[[StateWriter], tuple[StateFile, ...]]
"""The asynchronous part of a snapshot: writes what was frozen and returns the handles."""


class KeyedBackend(ABC):
    """The keyed state of one operator of one subtask."""

    timers: TimerTable

    @abstractmethod
    def set_key(self, key: Key, group: int) -> None:
        """Tables and timers are those of `key` from now on."""

    @abstractmethod
    def unset_key(self) -> None:
        """There is no current key: using tables and the timers' methods for one key raises `UsageError`."""

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
        """Take in what old subtasks saved, each with its files, as far as it is of the own key groups. Blocks.

        Raises:
            CorruptFile: a file is cut, changed, foreign or newer.
            UsageError: a state does not fit what is declared, or the files are of another back end's own format.

        """

    @abstractmethod
    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:
        """Freeze the state; return the work that writes it. The work is run at most once, and may never be run."""

    @abstractmethod
    def completed(self, checkpoint: CheckpointId) -> None:
        """The job has completed `checkpoint`: files that were shared in it may be referred to again."""

    @abstractmethod
    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete. Its work may be under way, done, or never be run."""

    @abstractmethod
    def maintain(self, budget: int) -> bool:
        """Do about `budget` small steps of upkeep, such as removing what has expired; whether more is to be done."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class TabledBackend(KeyedBackend):
    """A back end that has its tables by the names of their states."""

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
    """Whether an entry that was last written (or read, if that counts) at `written_ms` is over at `now`."""
    return now - written_ms >= ttl.duration_ms
