"""The files of a snapshot of a join with many records: an index of runs (`penstock.state.runs`), a file for the records
of each large run, and a file for the marks of each run that has marks.

The first section of the index is an Arrow stream. The metadata of its schema says what the other files are
(`JoinRunsHeader`). Its rows are the marks that have changed since the files of marks were written: the number of a
record in its run, and the mark, run after run. The other sections are files as a snapshot without runs has them
(`join_snapshot`): records that are in no file of their own, and records whose results were being handed on.

The file of a run has the columns of the side, ordered by the times of the join. A subtask takes the records of its own
key groups at any parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_stream, check_types
from penstock.api.join_steps import LEFT, RIGHT
from penstock.core.errors import CorruptFile
from penstock.core.messages import StateFile
from penstock.runtime.task.operators.join_marks import MARK, Changes, Marks, narrow
from penstock.runtime.task.operators.join_run import GONE, SHOWN
from penstock.runtime.task.operators.window_table import FiredRange
from penstock.state.backend import StateReader
from penstock.state.runs import RunSnapshot

ROW = "__row"
FORMAT = 1
_METADATA_KEY = b"penstock.join-runs"
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"
_MOST_ROWS = 2**31 - 1


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a side. Its file, and then the file of its marks, are the next files of the index."""

    side: int
    marks: bool = False
    """Whether a file has the marks."""
    changes: int = 0
    """How many marks have changed since the file of the marks was written."""


class JoinRunsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the files are. New fields: at the end, with a default."""

    join: str
    """The description of the join. State of one join cannot go on in another join."""
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    """The key columns of both sides."""
    passed: tuple[FiredRange, ...]
    """How far event time had come in each key group."""
    runs: tuple[SavedRun, ...]
    counts: bool = False
    """Whether marks say how many rows each row has matched, and `GONE` that it was taken back."""
    format: int = FORMAT


def encode_first(header: JoinRunsHeader, changes: Sequence[Changes | None]) -> pa.Buffer:
    """The first section. Sets how many marks of each run have changed. Reads nothing that changes."""
    rows, marks, runs = [np.empty(0, np.int64)], [np.empty(0, np.int32)], []
    for run, changed in zip(header.runs, changes, strict=True):
        if changed is None:
            runs.append(run)
            continue
        of_run, new = changed.latest()
        rows.append(of_run)
        marks.append(new)
        runs.append(msgspec.structs.replace(run, changes=of_run.size))
    columns = [pa.array(np.concatenate(rows).astype(np.uint32)), pa.array(narrow(np.concatenate(marks)))]
    header = msgspec.structs.replace(header, runs=tuple(runs))
    metadata: Any = {_METADATA_KEY: msgspec.json.encode(header)}
    fields = [pa.field(ROW, columns[0].type), pa.field(MARK, columns[1].type)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=metadata))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def is_join_index(data: bytes, files: Sequence[StateFile]) -> bool:
    """Whether an index of runs is the state of a join, and is nothing else. Raises `CorruptFile`."""
    sections = RunSnapshot(data, files, what="the state of a subtask").sections
    if not sections:
        return False
    try:
        metadata = pa.ipc.open_stream(pa.py_buffer(sections[0])).schema.metadata or {}
    except NOT_ARROW:
        return False
    return list(metadata) == [_METADATA_KEY]


class JoinSnapshot:
    """The files of one subtask, whose index was read; `what` names the state in errors. Raises `CorruptFile`."""

    def __init__(self, index: bytes, files: Sequence[StateFile], *, what: str) -> None:
        self._what = what
        self.snapshot = RunSnapshot(index, files, what=what)
        sections = self.snapshot.sections
        table = self._read(sections[0] if sections else b"")
        try:
            self.header = msgspec.json.decode((table.schema.metadata or {})[_METADATA_KEY], type=JoinRunsHeader)
        except (KeyError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self.corrupt(f"does not say what its runs are: {error}") from error
        if self.header.format != FORMAT:
            raise CorruptFile(
                f"{what} has format {self.header.format}; this program reads format {FORMAT}",
                hint="restore with the version of penstock that wrote the snapshot, or with a newer version",
            )
        if [(f.name, f.type) for f in list(table.schema)[:1]] != [(ROW, pa.uint32())] or table.num_columns != 2:
            raise self.corrupt("has changed marks without the numbers of their records")
        self.parts = tuple(sections[1:])
        """The other sections: files of joins as small states have them."""
        self.files: list[tuple[SavedRun, int, int | None]] = []
        """Each run, the number of its file, and the number of the file of its marks."""
        number = 0
        for run in self.header.runs:
            self.files.append((run, number, number + 1 if run.marks else None))
            number += 2 if run.marks else 1
        if number != len(self.snapshot.files) or any(run.side not in (LEFT, RIGHT) for run in self.header.runs):
            raise self.corrupt("has other files than its header says")
        counts = [run.changes for run in self.header.runs]
        if min(counts, default=0) < 0 or sum(counts) != table.num_rows:
            raise self.corrupt("has other changed marks than its header says")
        if any(run.changes and not run.marks for run in self.header.runs):
            raise self.corrupt("has changed marks of a run without marks")
        rows, marks = (table.column(name).to_numpy() for name in (ROW, MARK))
        ends = np.cumsum([0, *counts])
        self._changes = [(rows[begin:end], marks[begin:end]) for begin, end in pairwise(ends)]

    def rows(self, number: int, data: pa.Buffer) -> list[pa.RecordBatch]:
        """The records of a run, from the bytes of its file; the run has at least one record. They lie in `data`."""
        batches = self.snapshot.blocks(number, data, block_rows=_MOST_ROWS)
        if not batches:
            raise self.corrupt("has a run without records")
        return batches

    def changes(self, run: int) -> tuple[Any, Marks]:
        """The marks of a run that have changed since their file was written. Raises `CorruptFile`."""
        rows, marks = self._changes[run]
        _, file, _ = self.files[run]
        if rows.size and int(rows.max()) >= self.snapshot.index.runs[file].rows:
            raise self.corrupt("has marks of records that its run does not have")
        return rows.astype(np.int64), marks

    def marks(self, run: int, reader: StateReader, kind: Any) -> Marks | None:
        """The marks in the file of the marks of a run; None if there is no such file. Raises `CorruptFile`."""
        _, file, number = self.files[run]
        if number is None:
            return None
        entry = self.snapshot.index.runs[number]
        table = self._read(reader.get(self.snapshot.files[number]))
        if table.schema.names != [MARK] or not table.num_rows == entry.rows == self.snapshot.index.runs[file].rows:
            raise self.corrupt("has other marks than records")
        return table.column(MARK).to_numpy().astype(kind)

    def checked(self, marks: Marks) -> Marks:
        """The marks, if they mean something. Raises `CorruptFile`."""
        least, most = (GONE, _MOST_ROWS) if self.header.counts else (0, SHOWN)
        if marks.size and not least <= int(marks.min()) <= int(marks.max()) <= most:
            raise self.corrupt("has marks that mean nothing")
        return marks

    def _read(self, data: bytes) -> pa.Table:
        try:
            buffer = pa.py_buffer(data)
            check_stream(buffer)
            stream = pa.ipc.open_stream(buffer)
            check_types(stream.schema)
            table = stream.read_all()
            table.validate(full=True)
            check_size(table, len(data))
            if table.schema.names[-1:] != [MARK] or not pa.types.is_signed_integer(table.schema.field(MARK).type):
                raise ValueError("it has no marks")
            if any(column.null_count for column in table.columns):
                raise ValueError("it has a mark that is null")
        except NOT_ARROW as error:
            raise self.corrupt(f"has marks that cannot be read: {error}") from error
        return table

    def corrupt(self, text: str) -> CorruptFile:
        """The error that says what is wrong with the files."""
        return CorruptFile(f"{self._what} {text}", hint=_HINT)
