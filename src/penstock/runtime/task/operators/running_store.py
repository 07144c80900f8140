"""Where the rows of a running aggregate are kept: in memory, or in a back end for keyed state. Other operators whose
state is a row for each key keep their rows here, too.

Rows expire by a clock. The clock is that of the task, unless an operator gives a clock of its own: event time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.base import one_array
from penstock.api.state import StateKind, StateSpec
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.running_files import (
    KEY_GROUP,
    KeepsRows,
    RunningSnapshot,
    check_running_layout,
    latest_rows,
    snapshot_of,
)
from penstock.runtime.task.operators.running_table import GONE, WRITTEN, Found, RunningTable
from penstock.runtime.task.partitioning import key_groups
from penstock.state.backend import MISSING, StateContext, ttl_expired
from penstock.state.backends import make_backend
from penstock.state.keys import keys_of
from penstock.state.runs import RunFiles, is_runs

Bits = npt.NDArray[np.bool_]

Clock = Callable[[], int]
"""Milliseconds since 1970, by the clock of the task or in event time."""


class RunningStore(ABC):
    """The partials of each key. `read` and `write` are called in turn, for the same keys."""

    @abstractmethod
    def load(self) -> None:
        """Restore the rows of this subtask's key groups. Blocks."""

    @abstractmethod
    def read(self, keys: list[Any]) -> tuple[Bits, list[Any]]:
        """Which of the keys have a row, and the partial columns of these rows. No key is there twice."""

    @abstractmethod
    def write(self, rows: pa.Table, gone: Bits) -> None:
        """Set the rows of the keys that were read last: keys and partial columns. Rows that are `gone` are removed."""

    @abstractmethod
    def write_some(self, rows: pa.Table, which: Bits, written: npt.NDArray[np.int64]) -> None:
        """Set the rows of some of the keys that were read last; `which` says of which keys. `written` is the time from
        which on each row lives."""

    @abstractmethod
    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the rows, and return the work that writes them."""

    def completed(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` is complete."""

    def aborted(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` will never complete."""

    @abstractmethod
    def maintain(self) -> bool:
        """Do a small piece of upkeep. Returns whether more is to be done."""

    def close(self) -> None:  # noqa: B027
        """Free all resources."""


class MemoryStore(RunningStore):
    """Rows in a table in memory."""

    def __init__(self, step: KeepsRows, context: OperatorContext, clock: Clock | None = None) -> None:
        self._step = step
        self._context = context
        self._clock: Clock = context.now if clock is None else clock
        self._table = RunningTable(step.partial, len(step.keys))
        self._found: Found | None = None
        self._swept = 0
        self._files = RunFiles(
            # A subtask is not begun twice at the same time.
            f"{context.operator}-{context.task.subtask}-{context.epoch}-{context.now()}",
            groups=context.max_parallelism,
            own_groups=context.key_groups,
        )

    def load(self) -> None:
        """Read the rows of every old subtask."""
        context, step = self._context, self._step
        for state in context.restored:
            if not state.keyed:
                continue
            first = context.reader.get(state.keyed[0])
            if not is_runs(first):
                raise UsageError(
                    f"the state of {context.name!r} was not saved by a running aggregate in memory",
                    hint="start the job with the state back end that wrote the snapshot",
                )
            snapshot = RunningSnapshot(first, state.keyed, what=f"the state of {context.name!r}")
            check_running_layout(snapshot.header.layout, step, context.name)
            for rows in snapshot.segments(context.reader):
                self._take(rows)

    def _take(self, rows: pa.Table) -> None:
        groups = rows.column(KEY_GROUP).to_numpy()
        first, last = self._context.key_groups
        own: Any = pa.array((groups >= first) & (groups <= last))
        rows = latest_rows(rows.filter(own), self._step.keys)
        if rows.num_rows == 0:
            return
        if not self._step.keys and rows.num_rows != 1:
            raise CorruptFile("the state of a running aggregate without keys has several rows")
        columns = [one_array(rows.column(name)) for name in self._step.partial.names]
        found = self._table.find(columns[: len(self._step.keys)])
        gone = one_array(rows.column(GONE)).to_numpy(zero_copy_only=False)
        self._table.put(found, columns, gone=gone, written=rows.column(WRITTEN).to_numpy())

    def read(self, keys: list[Any]) -> tuple[Bits, list[Any]]:
        """Look the keys up. Rows that have expired are not there."""
        found = self._found = self._table.find(keys, expired=self._expired())
        return found.there, self._table.rows_of(found)

    def write(self, rows: pa.Table, gone: Bits) -> None:
        """Change the rows where they were found."""
        assert self._found is not None
        columns = [one_array(column) for column in rows.columns]
        self._table.put(self._found, columns, gone=gone, written=self._clock())
        self._found = None

    def write_some(self, rows: pa.Table, which: Bits, written: npt.NDArray[np.int64]) -> None:
        """Change some of the rows where they were found."""
        assert self._found is not None
        columns = [one_array(column) for column in rows.columns]
        gone = np.zeros(rows.num_rows, np.bool_)
        self._table.put(self._found.of(which), columns, gone=gone, written=written)
        self._found = None

    def _expired(self) -> int | None:
        ttl = self._step.ttl
        return None if ttl is None else self._clock() - ttl.duration_ms

    def maintain(self) -> bool:
        """Forget the expired rows of one segment."""
        expired = self._expired()
        if expired is not None:
            self._swept = self._table.remove_expired(self._swept, expired) or 0
        return False

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze all segments. The returned work writes the segments that no completed checkpoint has."""
        frozen, context = self._table.freeze(), self._context
        runs, sections = snapshot_of(frozen, self._step, self._files, context.max_parallelism)
        work = self._files.snapshot(checkpoint, runs, options)

        def write(writer: StateWriter) -> OperatorState:
            files = work(writer, sections()) if frozen else ()
            return OperatorState(operator=OperatorId(context.operator), keyed=files, key_groups=context.key_groups)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later snapshots refer to the files of the checkpoint."""
        self._files.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No snapshot refers to the files of the checkpoint."""
        self._files.aborted(checkpoint)


class BackendStore(RunningStore):
    """Rows in a back end for keyed state, one by one: for state that is larger than the memory."""

    def __init__(self, step: KeepsRows, context: OperatorContext, clock: Clock | None = None) -> None:
        self._context = context
        self._clock: Clock = context.now if clock is None else clock
        self._fields = list(step.partial)[len(step.keys) :]
        self._type = pa.struct(self._fields)
        self._ttl = step.ttl
        self._key_names = step.keys
        (name,) = step.declared_states
        self._backend = (context.make_backend or make_backend)(
            StateContext(
                operator=context.operator,
                name=context.name,
                subtask=context.task.subtask,
                keys=pa.schema(list(step.partial)[: len(step.keys)]),
                groups=context.max_parallelism,
                own_groups=context.key_groups,
                groups_of=lambda batch: key_groups(batch, step.keys, context.max_parallelism),
                specs=(StateSpec(name=name, kind=StateKind.VALUE, type=self._type, ttl=step.ttl),),
                now=lambda: Instant(self._clock()),
                settings=context.state,
            )
        )
        self._rows = self._backend.value_table(name)
        self._keys: list[tuple[Any, int]] = []

    def load(self) -> None:
        """Let the back end read the files of old subtasks."""
        if self._context.restored:
            self._backend.restore([state.keyed for state in self._context.restored], self._context.reader)

    def read(self, keys: list[Any]) -> tuple[Bits, list[Any]]:
        """Ask for every key."""
        batch = pa.RecordBatch.from_arrays(keys, names=list(self._key_names))
        groups = key_groups(batch, self._key_names, self._context.max_parallelism).tolist()
        self._keys = list(zip(keys_of(dict(zip(self._key_names, keys, strict=True))), groups, strict=True))
        ttl, now = self._ttl, self._clock()
        there, found = np.zeros(len(self._keys), np.bool_), []
        set_key, get = self._backend.set_key, self._rows.get
        for row, (key, group) in enumerate(self._keys):
            set_key(key, group)
            entry = get()
            if entry is MISSING or (ttl is not None and ttl_expired(ttl, entry[1], now)):
                continue
            there[row] = True
            found.append(entry if ttl is None else entry[0])
        self._backend.unset_key()
        partials: Any = pa.array(found, self._type)
        return there, partials.flatten()

    def write(self, rows: pa.Table, gone: Bits) -> None:
        """Set every key."""
        columns = [one_array(column) for column in rows.columns[len(self._key_names) :]]
        partials: Any = pa.StructArray.from_arrays(columns, fields=self._fields)
        now, ttl = self._clock(), self._ttl
        set_key, put, remove = self._backend.set_key, self._rows.put, self._rows.remove
        for (key, group), value, is_gone in zip(self._keys, partials.to_pylist(), gone.tolist(), strict=True):
            set_key(key, group)
            if is_gone:
                remove()
            else:
                put(value if ttl is None else (value, now))
        self._backend.unset_key()

    def write_some(self, rows: pa.Table, which: Bits, written: npt.NDArray[np.int64]) -> None:
        """Set some of the keys."""
        columns = [one_array(column) for column in rows.columns[len(self._key_names) :]]
        values: Any = pa.StructArray.from_arrays(columns, fields=self._fields)
        ttl, set_key, put = self._ttl, self._backend.set_key, self._rows.put
        # A back end keeps no times before 1970: rows from before live on until then.
        times = np.maximum(written, 0).tolist()
        for number, value, time_ms in zip(np.flatnonzero(which).tolist(), values.to_pylist(), times, strict=True):
            set_key(*self._keys[number])
            put(value if ttl is None else (value, time_ms))
        self._backend.unset_key()

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Let the back end freeze its state."""
        work, context = self._backend.snapshot(checkpoint, options), self._context

        def write(writer: StateWriter) -> OperatorState:
            return OperatorState(
                operator=OperatorId(context.operator), keyed=work(writer), key_groups=context.key_groups
            )

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Tell the back end."""
        self._backend.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Tell the back end."""
        self._backend.aborted(checkpoint)

    def maintain(self) -> bool:
        """Let the back end do some upkeep."""
        return self._backend.maintain(256)

    def close(self) -> None:
        """Close the back end."""
        self._backend.close()
