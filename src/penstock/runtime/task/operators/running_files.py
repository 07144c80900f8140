"""The files of a snapshot of running aggregates in memory: an index of runs (`penstock.state.runs`), and a file for
each segment of the table.

The first section of the index says what the rows mean, and in which order the segments were begun. Each segment is an
Arrow stream: the segments of few rows in the other sections, all others in files that later checkpoints refer to. The
columns are the keys, the partial columns, `__gone` (the row of the key has been removed), `__written` (when, in
milliseconds since 1970) and `__key_group`. Later rows replace earlier rows of the same key, in the order of the
segments and of the rows in a segment. Different subtasks have different keys. At any parallelism a subtask restores the
segments by taking the rows of its own key groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.aggregate_kinds.description import Aggregate, SavedAggregate
from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_stream, check_types
from penstock.api.state import Ttl
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.graph import DeclaredState
from penstock.core.messages import StateFile
from penstock.ports import Frame
from penstock.runtime.task.operators.row_segments import Segment
from penstock.runtime.task.operators.running_table import GONE, HASH, WRITTEN
from penstock.runtime.task.partitioning import key_groups
from penstock.state.backend import StateReader
from penstock.state.format import check_names
from penstock.state.runs import LiveRun, Run, RunFiles, RunSnapshot

KEY_GROUP = "__key_group"
FORMAT = 1
SECTION_ROWS = 512
"""Segments with fewer rows are sections of the index, unless a file has them already."""
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"
_FIELDS: list[pa.Field[Any]] = [
    pa.field(GONE, pa.bool_()),
    pa.field(WRITTEN, pa.int64()),
    pa.field(KEY_GROUP, pa.int32()),
]


class KeepsRows(Protocol):
    """A step whose state is a row for each key."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates that the rows have; none if the rows are no aggregates."""

    @property
    def partial(self) -> pa.Schema:
        """The columns of the rows. The key columns come first."""

    @property
    def ttl(self) -> Ttl | None:
        """How long a row is kept; None: for ever."""

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """The only state of the step, by its name."""


class RunningLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a snapshot mean. State of one layout cannot be restored under another layout."""

    keys: tuple[str, ...]
    aggregates: tuple[SavedAggregate, ...]
    columns: tuple[str, ...]
    """The keys and the partial columns, as `name: type`."""

    @classmethod
    def of(cls, step: KeepsRows) -> RunningLayout:
        """The layout of a step's state."""
        return cls(
            keys=step.keys,
            aggregates=tuple(aggregate.saved() for aggregate in step.aggregates),
            columns=tuple(f"{field.name}: {field.type}" for field in step.partial),
        )

    def __str__(self) -> str:
        columns = f"columns {', '.join(self.columns)}"
        return f"aggregates {', '.join(map(str, self.aggregates))}, {columns}" if self.aggregates else columns


class RunningHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first section of the index, as JSON. New fields: at the end, with a default."""

    layout: RunningLayout
    sections: tuple[int, ...]
    """The numbers of the segments that are sections. Segments were begun in the order of their numbers."""
    runs: tuple[int, ...]
    """The numbers of the segments that are files."""
    format: int = FORMAT
    ttl_ms: int | None = None
    """How long rows live; None: for ever."""


class SegmentRun(Run):
    """A frozen segment as a run."""

    __slots__ = ("_groups", "_keys", "_segment")

    def __init__(self, segment: Segment, keys: Sequence[str], groups: int) -> None:
        super().__init__(())
        self.starts = (0, segment.rows)
        self.token = segment.token
        self._segment = segment
        self._keys = keys
        self._groups = groups

    def encoded(self) -> pa.Buffer:
        """The segment as an Arrow stream."""
        rows = self._segment.table().drop_columns([HASH])
        batches = rows.combine_chunks().to_batches()
        numbers = np.concatenate([key_groups(batch, self._keys, self._groups) for batch in batches])
        return encode_running(rows.append_column(KEY_GROUP, pa.array(numbers, pa.int32())))


def encode_running(rows: pa.Table) -> pa.Buffer:
    """Rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def snapshot_of(
    frozen: Sequence[Segment], step: KeepsRows, files: RunFiles, groups: int
) -> tuple[list[LiveRun], Callable[[], list[Frame]]]:
    """The segments that are to be in files of their own, and the work that makes the sections of the index."""
    runs = [SegmentRun(segment, step.keys, groups) for segment in frozen]
    large = [files.has(run) or run.rows >= SECTION_ROWS for run in runs]
    header = RunningHeader(
        layout=RunningLayout.of(step),
        sections=tuple(s.number for s, is_large in zip(frozen, large, strict=True) if not is_large),
        runs=tuple(s.number for s, is_large in zip(frozen, large, strict=True) if is_large),
        ttl_ms=None if step.ttl is None else step.ttl.duration_ms,
    )
    small = [run for run, is_large in zip(runs, large, strict=True) if not is_large]

    def sections() -> list[Frame]:
        return [msgspec.json.encode(header), *(run.encoded() for run in small)]

    return [LiveRun(run) for run, is_large in zip(runs, large, strict=True) if is_large], sections


class RunningSnapshot:
    """A snapshot of one subtask whose index was read; `what` names the state in errors. Raises `CorruptFile`."""

    def __init__(self, index: bytes, files: Sequence[StateFile], *, what: str) -> None:
        self._snapshot = RunSnapshot(index, files, what=what)
        self.what = what
        sections = self._snapshot.sections
        try:
            self.header = msgspec.json.decode(sections[0] if sections else b"", type=RunningHeader)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"does not say what its rows are: {error}") from error
        if self.header.format != FORMAT:
            raise CorruptFile(
                f"{what} has format {self.header.format}; this program reads format {FORMAT}",
                hint="restore with the version of penstock that wrote the snapshot, or with a newer version",
            )
        numbers = (*self.header.sections, *self.header.runs)
        if len(self.header.sections) != len(sections) - 1 or len(self.header.runs) != len(self._snapshot.files):
            raise self._corrupt("has other segments than its header says")
        if len(dict.fromkeys(numbers)) != len(numbers):
            raise self._corrupt("has two segments of one number")
        self.size_bytes = len(index) + sum(file.size for file in self._snapshot.files)

    def segments(self, reader: StateReader) -> Iterator[pa.Table]:
        """The rows of each segment, in the order in which the segments were begun."""
        header, snapshot = self.header, self._snapshot
        small = dict(zip(header.sections, snapshot.sections[1:], strict=True))
        large = dict(zip(header.runs, zip(snapshot.files, snapshot.index.runs, strict=True), strict=True))
        for number in sorted((*small, *large)):
            if number in small:
                yield self._rows(small[number])
                continue
            file, entry = large[number]
            rows = self._rows(reader.get(file))
            if rows.num_rows != entry.rows or entry.first or entry.marks:
                raise self._corrupt("has a segment of another number of rows than its index says")
            yield rows

    def _rows(self, data: bytes) -> pa.Table:
        try:
            buffer = pa.py_buffer(data)
            check_stream(buffer)
            stream = pa.ipc.open_stream(buffer)
            check_types(stream.schema)
            table = stream.read_all()
            table.validate(full=True)
            check_size(table, len(data))
            check_names(table.schema)
        except NOT_ARROW as error:
            raise self._corrupt(f"cannot be read: {error}") from error
        fields, layout = list(table.schema.remove_metadata()), self.header.layout
        columns = tuple(f"{field.name}: {field.type}" for field in fields[: -len(_FIELDS)])
        keys = tuple(field.name for field in fields[: len(layout.keys)])
        if columns != layout.columns or keys != layout.keys or fields[-len(_FIELDS) :] != _FIELDS:
            raise self._corrupt("has a segment with other columns than its header says")
        if any(table.column(field.name).null_count for field in _FIELDS):
            raise self._corrupt("has rows of no key group")
        return table

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(f"{self.what} {text}", hint=_HINT)


def is_running_index(data: bytes, files: Sequence[StateFile]) -> bool:
    """Whether an index of runs is of running aggregates. Raises `CorruptFile`."""
    sections = RunSnapshot(data, files, what="the state of a subtask").sections
    return bool(sections) and sections[0][:1] == b"{"


def latest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key."""
    if not keys or rows.num_rows == 0:
        return rows.slice(max(rows.num_rows - 1, 0))
    number = "\0number"
    numbered = rows.append_column(number, pa.array(np.arange(rows.num_rows)))
    grouped = pa.TableGroupBy(numbered, list(keys), use_threads=False).aggregate([(number, "max")])
    if grouped.num_rows == rows.num_rows:
        return rows
    last: Any = grouped.column(f"{number}_max")
    return rows.take(last)


def check_running_layout(found: RunningLayout, step: KeepsRows, name: str) -> None:
    """Raise `UsageError` unless the state that was found is of the step, which has this name."""
    expected = RunningLayout.of(step)
    if found != expected:
        raise UsageError(
            f"the state of {name!r} has {found}; the step in the program has {expected}",
            hint="give the changed step another name, so that it starts without state",
        )
