"""The state of a join in a snapshot.

A snapshot has a file for each side, and a further file if it was taken while the results of a batch were being handed
on: the *pending* records of that batch, which have met no record of the other side. A file is an Arrow stream: the
columns of the side, then the mark of each record (0: the record has not matched; 1: it has; 2: it has been handed on as
a record without a match, at the end of the data), then its key group. The file of a regular join has when each row came
as the last column of the side, and as the mark of each row how many rows it has matched, or, of a pending row, 1 if the
row is added and 0 if the row is taken back. Records are in the order of their key groups. So
at any parallelism a subtask takes the records of its own key groups. The schema's metadata says of which join and of
which side the records are, and how far event time had come in each key group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_stream, check_types
from penstock.api.join_steps import LEFT, RIGHT, TwoSidedStep
from penstock.core.errors import CorruptFile, UsageError
from penstock.runtime.task.operators.join_marks import MARK
from penstock.runtime.task.operators.join_run import GONE, SHOWN, Frozen, Marks, one_batch
from penstock.runtime.task.operators.window_table import FiredRange
from penstock.runtime.task.partitioning import key_groups
from penstock.state.format import check_names

KEY_GROUP = "__key_group"
FORMAT = 1
_MOST_MATCHES = 2**31 - 1

_METADATA_KEY = b"penstock.join"
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"


class JoinHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What is written beside the records, in the metadata of the Arrow schema."""

    join: str
    """The description of the join. State of one join cannot go on in another join."""
    side: int
    keys: tuple[str, ...]
    passed: tuple[FiredRange, ...]
    """How far event time had come in each key group."""
    pending: bool = False
    format: int = FORMAT
    counts: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether marks say how many rows each row has matched, or, of pending rows, whether a row is added. Absent from
    the state of joins by time."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one file, cut to the key groups of a subtask."""

    header: JoinHeader
    rows: pa.RecordBatch
    marks: Marks


def encode(parts: Sequence[Frozen], schema: pa.Schema, header: JoinHeader, groups: int) -> bytes:
    """The bytes of a file with these records. Reads nothing that changes, and may run off the loop."""
    rows = one_batch((part.rows for part in parts), schema)
    mark_type = _mark_type(header)
    marks = np.concatenate(
        [np.empty(0, mark_type), *(np.zeros(p.rows.num_rows, mark_type) if p.marks is None else p.marks for p in parts)]
    )
    if header.counts is True and (marks == GONE).any():
        rows, marks = rows.filter(pa.array(marks != GONE)), marks[marks != GONE]
    numbers = key_groups(rows, header.keys, groups)
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    fields = [*schema, pa.field(MARK, pa.from_numpy_dtype(mark_type)), pa.field(KEY_GROUP, pa.int32())]
    metadata: Any = {_METADATA_KEY: msgspec.json.encode(header)}
    arrays = [*rows.take(order).columns, pa.array(marks[order]), pa.array(numbers[order], pa.int32())]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _mark_type(header: JoinHeader) -> Any:
    return np.int32 if header.counts is True else np.uint8


def is_join(data: bytes) -> bool:
    """Whether an Arrow stream is the state of a join, and is nothing else. The state of a window may be pickled, and
    must not pass for the state of a join."""
    try:
        metadata = pa.ipc.open_stream(pa.py_buffer(data)).schema.metadata or {}
    except NOT_ARROW:
        return False
    return list(metadata) == [_METADATA_KEY]


def read_join(data: bytes) -> tuple[pa.Table, JoinHeader]:
    """The records of a file, with their marks and key groups in the last columns. Raises `CorruptFile`."""
    try:
        buffer = pa.py_buffer(data)
        check_stream(buffer)
        stream = pa.ipc.open_stream(buffer)
        check_types(stream.schema)
        table = stream.read_all()
        table.validate(full=True)
        check_size(table, len(data))
        check_names(table.schema)
        header = msgspec.json.decode((table.schema.metadata or {})[_METADATA_KEY], type=JoinHeader)
    except (*NOT_ARROW, KeyError, msgspec.MsgspecError) as error:
        raise CorruptFile(f"the state of a join cannot be read: {error}", hint=_HINT) from error
    if header.format != FORMAT:
        raise CorruptFile(
            f"the state of a join has format {header.format}; this program reads format {FORMAT}",
            hint="restore with the version of penstock that wrote the snapshot, or with a newer version",
        )
    _check(table, header)
    return table.combine_chunks(), header


def _check(table: pa.Table, header: JoinHeader) -> None:
    """Raise `CorruptFile` unless the records fit the header."""
    last = [(field.name, field.type) for field in list(table.schema)[-2:]]
    if last != [(MARK, pa.from_numpy_dtype(_mark_type(header))), (KEY_GROUP, pa.int32())]:
        raise CorruptFile("the state of a join has no marks and key groups", hint=_HINT)
    marks, numbers = table.column(MARK), table.column(KEY_GROUP)
    if marks.null_count or numbers.null_count:
        raise CorruptFile("the state of a join has records without a mark or a key group", hint=_HINT)
    most = SHOWN if header.counts is not True else int(header.pending) or _MOST_MATCHES
    if table.num_rows and not 0 <= marks.to_numpy().min() <= marks.to_numpy().max() <= most:
        raise CorruptFile("the state of a join has marks that mean nothing", hint=_HINT)
    if not (np.diff(numbers.to_numpy()) >= 0).all():
        raise CorruptFile("the state of a join is not in the order of its key groups", hint=_HINT)
    if header.side not in (LEFT, RIGHT):
        raise CorruptFile(f"the state of a join is of side {header.side}, and a join has two sides", hint=_HINT)


def decode(data: bytes, step: TwoSidedStep, own: tuple[int, int], *, groups: int, name: str) -> Restored:
    """The records of a file, cut to the key groups from `own[0]` to `own[1]`. Raises `CorruptFile`, and `UsageError` if
    the file is of another join than the step of this name."""
    table, header = read_join(data)
    if header.join != step.described():
        raise other_join(name, header.join, step)
    schema = step.side(header.side).schema
    numbers = np.asarray(table.column(KEY_GROUP).to_numpy())
    first, last = np.searchsorted(numbers, [own[0], own[1] + 1])
    cut = table.slice(int(first), int(last - first))
    marks: npt.NDArray[Any] = np.array(cut.column(MARK).to_numpy(), _mark_type(header))
    try:
        rows = one_batch(cut.select(schema.names).cast(schema).to_batches(), schema)
    except (pa.ArrowException, KeyError) as error:
        raise CorruptFile(f"the state of a join has other columns than it says: {error}", hint=_HINT) from error
    if rows.column(step.side(header.side).time_column).null_count:
        raise CorruptFile("the state of a join has records without a time", hint=_HINT)
    if not np.array_equal(key_groups(rows, step.side(header.side).keys, groups), numbers[first:last]):
        raise CorruptFile("the state of a join has records in the wrong key group", hint=_HINT)
    passed = tuple(
        msgspec.structs.replace(
            entry, first_group=max(entry.first_group, own[0]), last_group=min(entry.last_group, own[1])
        )
        for entry in header.passed
        if entry.first_group <= own[1] and entry.last_group >= own[0]
    )
    return Restored(header=msgspec.structs.replace(header, passed=passed), rows=rows, marks=marks)


def other_join(name: str, join: str, step: TwoSidedStep) -> UsageError:
    """The error for state of another join than the step of this name."""
    return UsageError(
        f"the state of {name!r} is of a join {join}; the step in the program is a join {step.described()}",
        hint="give the changed join another name, so that it starts without state",
    )
