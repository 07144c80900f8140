"""The files of a snapshot of running aggregates in memory: Arrow streams of rows, one for each segment of the table.

The columns are the keys, the partial columns, `__gone` (the row of the key has been removed), `__written` (when, in
milliseconds since 1970) and `__key_group`. The metadata of the schema says what the rows mean. Later rows replace
earlier rows of the same key, in the order of the files and of the rows in a file. Files of different subtasks have
different keys. At any parallelism a subtask restores the files by taking the rows of its own key groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.aggregate_kinds.description import SavedAggregate
from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_stream, check_types
from penstock.api.steps import RunningStep
from penstock.core.errors import CorruptFile, UsageError
from penstock.runtime.task.operators.running_table import GONE, WRITTEN
from penstock.runtime.task.partitioning import key_groups
from penstock.state.format import check_names

KEY_GROUP = "__key_group"
FORMAT = 1
METADATA_KEY = b"penstock.running"
_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"
_FIELDS: list[pa.Field[Any]] = [
    pa.field(GONE, pa.bool_()),
    pa.field(WRITTEN, pa.int64()),
    pa.field(KEY_GROUP, pa.int32()),
]
_OWN = pa.schema(_FIELDS)


class RunningLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a snapshot mean. State of one layout cannot be restored under another layout."""

    keys: tuple[str, ...]
    aggregates: tuple[SavedAggregate, ...]
    columns: tuple[str, ...]
    """The keys and the partial columns, as `name: type`."""

    @classmethod
    def of(cls, step: RunningStep) -> RunningLayout:
        """The layout of a step's state."""
        return cls(
            keys=step.keys,
            aggregates=tuple(aggregate.saved() for aggregate in step.aggregates),
            columns=tuple(f"{field.name}: {field.type}" for field in step.partial),
        )

    def __str__(self) -> str:
        return f"aggregates {', '.join(map(str, self.aggregates))}, columns {', '.join(self.columns)}"


class RunningHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What is written beside the rows. New fields: at the end, with a default."""

    layout: RunningLayout
    format: int = FORMAT
    ttl_ms: int | None = None
    """How long rows live; None: for ever."""


def header_of(step: RunningStep) -> RunningHeader:
    """The header of the files of a step."""
    return RunningHeader(layout=RunningLayout.of(step), ttl_ms=None if step.ttl is None else step.ttl.duration_ms)


def check_running_layout(found: RunningLayout, step: RunningStep, name: str) -> None:
    """Raise `UsageError` unless the state that was found is of the step, which has this name."""
    expected = RunningLayout.of(step)
    if found != expected:
        raise UsageError(
            f"the state of {name!r} has {found}; the step in the program has {expected}",
            hint="give the changed aggregate another name, so that it starts without state",
        )


def with_key_groups(rows: pa.Table, keys: Sequence[str], groups: int) -> pa.Table:
    """The rows with their key groups."""
    batches = rows.combine_chunks().to_batches() if rows.num_rows else []
    numbers = np.concatenate([np.empty(0, np.int32), *(key_groups(batch, keys, groups) for batch in batches)])
    return rows.append_column(KEY_GROUP, pa.array(numbers, pa.int32()))


def encode_running(rows: pa.Table, header: RunningHeader) -> pa.Buffer:
    """The bytes of a file. The key groups are the last column of the rows."""
    sink = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({METADATA_KEY: msgspec.json.encode(header)})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def is_running(data: bytes) -> bool:
    """Whether a file of state is of running aggregates in memory."""
    return METADATA_KEY in data[:65_536]


def read_running(data: bytes) -> tuple[pa.Table, RunningHeader]:
    """The rows of a file, and its header. Raises `CorruptFile`."""
    try:
        buffer = pa.py_buffer(data)
        check_stream(buffer)
        stream = pa.ipc.open_stream(buffer)
        check_types(stream.schema)
        table = stream.read_all()
        table.validate(full=True)
        check_size(table, len(data))
        check_names(table.schema)
        header = msgspec.json.decode((table.schema.metadata or {})[METADATA_KEY], type=RunningHeader)
    except (*NOT_ARROW, KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise CorruptFile(f"the state of a running aggregate cannot be read: {error}", hint=_HINT) from error
    if header.format != FORMAT:
        raise CorruptFile(
            f"the state of a running aggregate has format {header.format}; this program reads format {FORMAT}",
            hint="restore with the version of penstock that wrote the snapshot, or with a newer version",
        )
    fields = list(table.schema)
    columns = tuple(f"{field.name}: {field.type}" for field in fields[: -len(_OWN)])
    if columns != header.layout.columns or pa.schema(fields[-len(_OWN) :]).remove_metadata() != _OWN:
        raise CorruptFile("the state of a running aggregate has other columns than its header says", hint=_HINT)
    if columns[: len(header.layout.keys)] != tuple(
        c for c in columns if c.partition(": ")[0] in header.layout.keys
    ) or any(table.column(name).null_count for name in _OWN.names):
        raise CorruptFile("the state of a running aggregate has no keys or no key groups", hint=_HINT)
    return table.replace_schema_metadata(None), header
