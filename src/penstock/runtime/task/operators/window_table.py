"""The state of a window: partial aggregates in immutable tables.

Tables of partials are appended as they come, and become runs (`run_table`). The rows of a run are ordered by the time
by which their windows become complete (the start of a window, or its end if windows differ in length), so that the
windows that are due are the head of each run.

A snapshot takes references to runs and tables, and is written off the loop. A savepoint, and the snapshot of a small
state, is one Arrow stream: the merged partials ordered by key group, with the key group in the last column. The
schema's metadata says up to which time the windows of each range of key groups have fired. At any parallelism a subtask
restores the snapshot by taking the rows of its own key groups. Any other snapshot has the runs in files of their own,
which later snapshots refer to (`penstock.state.runs`); rows that are in no such file are in a section of the index,
which is an Arrow stream of the same form.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.description import SavedAggregate
from penstock.api.arrow_bounds import check_size, check_stream, check_types
from penstock.api.steps import SortStep, WindowStep
from penstock.api.window_schema import WINDOW_START, completing_column, kept_columns
from penstock.core.errors import CorruptFile, UsageError
from penstock.runtime.task.operators.aggregation import group, of_partials
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.run_table import Frozen, RunTable
from penstock.runtime.task.operators.slow_merging import Merged, SlowMerging, merges_by_row
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Slice
from penstock.state.format import check_names

KEY_GROUP = "__key_group"
FORMAT = 1

STREAM_START = b"\xff\xff\xff\xff"
"""The first bytes of an Arrow stream. The state of a window is saved as an Arrow stream."""
_METADATA_KEY = b"penstock.window"
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"
PART_ROWS = 32_768
"""Windows that share panes are put together in parts of about this many rows. A part has at least one window."""


class FiredRange(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of these key groups have fired up to a time."""

    first_group: int
    last_group: int
    fired_us: int | None
    """None: event time had not begun."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a snapshot mean. State of one layout cannot be restored under another layout."""

    keys: tuple[str, ...]
    size_us: int | msgspec.UnsetType = msgspec.UNSET
    """The size of tumbling windows. Like `offset_us`, unset for windows of any other type."""
    offset_us: int | msgspec.UnsetType = msgspec.UNSET
    aggregates: tuple[SavedAggregate, ...]
    columns: tuple[str, ...]
    """Result columns, as `name: type`."""
    window: str | msgspec.UnsetType = msgspec.UNSET
    """The description of windows of any other type; unset for tumbling windows."""
    time: str | msgspec.UnsetType = msgspec.UNSET
    """The column of times, of records that are sorted by it; unset for windows."""

    @classmethod
    def of(cls, step: WindowStep | SortStep) -> Layout:
        """The layout of a step's state."""
        if isinstance(step, SortStep):
            columns = tuple(f"{field.name}: {field.type}" for field in step.schema)
            return cls(keys=step.keys, aggregates=(), columns=columns, time=step.late.time_column)
        return cls(
            keys=step.keys,
            aggregates=tuple(aggregate.saved() for aggregate in step.aggregates),
            columns=tuple(f"{field.name}: {field.type}" for field in step.schema),
            **step.window.saved(),
        )

    def __str__(self) -> str:
        if self.time is not msgspec.UNSET:
            keys = f" of each {', '.join(self.keys)}" if self.keys else ""
            return f"records{keys} sorted by {self.time}, columns {', '.join(self.columns)}"
        kinds = ", ".join(map(str, self.aggregates))
        window = f"{self.size_us} us (offset {self.offset_us} us)" if self.window is msgspec.UNSET else self.window
        return f"windows of {window}, {kinds}, columns {', '.join(self.columns)}"


def check_layout(found: Layout, step: WindowStep | SortStep, name: str) -> None:
    """Raise `UsageError` unless the state that was found is of the step, which has this name."""
    expected = Layout.of(step)
    if found != expected:
        what = "sort" if isinstance(step, SortStep) else "window"
        raise UsageError(
            f"the state of {name!r} is of {found}; the step in the program has {expected}",
            hint=f"give the changed {what} another name, so that it starts without state",
        )


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is written beside the rows of a window snapshot, in the metadata of the Arrow schema."""

    layout: Layout
    fired: tuple[FiredRange, ...]
    """How far the windows of each key group have fired."""
    format: int = FORMAT
    leaving: bool | msgspec.UnsetType = msgspec.UNSET
    """Set if the rows are whole windows that share panes: these windows had been put together from panes, and their
    results had not been handed on. Otherwise the rows of windows that share panes are panes."""
    part: str | msgspec.UnsetType = msgspec.UNSET
    """Which part of the state of windows that show updates the rows are. Unset for windows of any other kind."""
    runs: int | msgspec.UnsetType = msgspec.UNSET
    """In a section of an index of runs: how many of the runs have rows of this part. The runs are in the order of the
    sections. Unset: the runs are of the first section."""


class WindowTable(RunTable):
    """Partial aggregates by key and window."""

    def __init__(self, step: WindowStep) -> None:
        super().__init__(step.keys, completing_column(step.window), self._grouped)
        self._window = step.window
        self._calculations = of_partials(step.aggregates)
        self._slow = SlowMerging(self._calculations, step.window) if merges_by_row(step.aggregates) else None
        self._columns = (*step.keys, *kept_columns(step.window))
        self.row_columns = (*self._columns, *(calculation.name for calculation in self._calculations))
        """The columns of the table."""

    @property
    def slow(self) -> SlowMerging | None:
        """Set if merges call an aggregate of the user's."""
        return self._slow

    def encode(self, frozen: Frozen, *, header: Header, groups: int) -> bytes:
        """The bytes of a snapshot in one file. Reads nothing that changes, and may run off the loop."""
        parts = frozen.parts
        merged = self._grouped(parts) if parts else pa.table({})
        return encode_rows(merged, keys=self.keys, header=header, groups=groups)

    def completing_times(self, partials: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The times by which the windows of partials become complete, in microseconds."""
        return int64_values(partials.column(self.time))

    def _merged_in_slices(self, parts: Sequence[pa.Table], slice_: Slice) -> Merged:
        assert self._slow is not None
        rows = pa.concat_tables([part.select(self.row_columns) for part in parts])
        return (yield from self._slow.grouped(rows, self._columns, slice_))

    def _grouped(self, parts: Sequence[pa.Table]) -> pa.Table:
        return group(pa.concat_tables(parts), self._columns, self._calculations, window=self._window)


def encode_rows(rows: pa.Table, *, keys: Sequence[str], header: Header, groups: int) -> bytes:
    """The bytes of a snapshot that has these rows, in the order of their key groups."""
    batches = rows.combine_chunks().to_batches() if rows.num_rows else []
    numbers = np.concatenate([np.empty(0, np.int32), *(key_groups(b, keys, groups) for b in batches)])
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    return write_file(rows.take(order).append_column(KEY_GROUP, pa.array(numbers[order], pa.int32())), header)


def decode(data: bytes, own: tuple[int, int]) -> tuple[pa.Table, Header]:
    """The rows and the header of a snapshot, cut to the key groups from `own[0]` to `own[1]`. Raises `CorruptFile`."""
    table, header = read_file(data)
    numbers = np.asarray(table.column(table.num_columns - 1).to_numpy())
    first, last = np.searchsorted(numbers, [own[0], own[1] + 1])
    rows = table.slice(int(first), int(last - first)).remove_column(table.num_columns - 1)
    fired = tuple(
        FiredRange(
            first_group=max(entry.first_group, own[0]),
            last_group=min(entry.last_group, own[1]),
            fired_us=entry.fired_us,
        )
        for entry in header.fired
        if entry.first_group <= own[1] and entry.last_group >= own[0]
    )
    return rows.replace_schema_metadata(None), msgspec.structs.replace(header, fired=fired)


def write_file(table: pa.Table, header: Header) -> bytes:
    """The bytes of a snapshot: rows in the order of their key groups, which are the last column."""
    metadata = {_METADATA_KEY: msgspec.json.encode(header)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def is_window(data: bytes) -> bool:
    """Whether a file of state is the snapshot of a window."""
    return data[:4] == STREAM_START


def read_file(data: bytes) -> tuple[pa.Table, Header]:
    """The rows of a snapshot, with the key group in the last column, and the header of the snapshot. Raises
    `CorruptFile`."""
    try:
        buffer = pa.py_buffer(data)
        check_stream(buffer)
        stream = pa.ipc.open_stream(buffer)
        check_types(stream.schema)
        table = stream.read_all()
        table.validate(full=True)
        check_size(table, len(data))
        check_names(table.schema)
        header = msgspec.json.decode((table.schema.metadata or {})[_METADATA_KEY], type=Header)
    except (pa.ArrowException, OSError, EOFError, KeyError, ValueError, MemoryError, msgspec.MsgspecError) as error:
        raise CorruptFile(f"the snapshot of a window cannot be read: {error}", hint=_HINT) from error
    if header.format != FORMAT:
        raise CorruptFile(
            f"the snapshot of a window has format {header.format}; this program reads format {FORMAT}",
            hint="restore with the version of penstock that wrote the snapshot, or with a newer version",
        )
    _check_rows(table, header)
    return table, header


def _check_rows(table: pa.Table, header: Header) -> None:
    """Raise `CorruptFile` unless the rows fit the header."""
    last = table.schema.field(table.num_columns - 1) if table.num_columns else None
    if last is None or last.name != KEY_GROUP or last.type != pa.int32() or table.column(KEY_GROUP).null_count:
        raise CorruptFile("the snapshot of a window has no key groups", hint=_HINT)
    time = WINDOW_START if header.layout.time is msgspec.UNSET else header.layout.time
    missing = [name for name in (*header.layout.keys, time) if name not in table.schema.names]
    if missing and table.num_rows:
        raise CorruptFile(f"the snapshot of a window has no column {missing[0]!r}", hint=_HINT)
    numbers = np.asarray(table.column(KEY_GROUP).to_numpy())
    if not (numbers[1:] >= numbers[:-1]).all():
        raise CorruptFile("the snapshot of a window is not in the order of its key groups", hint=_HINT)
    if table.num_rows and (not pa.types.is_timestamp(table.schema.field(time).type) or _lacks_times(table, header)):
        raise CorruptFile("the snapshot of a window has windows whose starts are not timestamps", hint=_HINT)


def _lacks_times(table: pa.Table, header: Header) -> bool:
    """Whether records that are sorted by time have no time."""
    return header.layout.time is not msgspec.UNSET and table.column(header.layout.time).null_count > 0
