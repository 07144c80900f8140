"""Rows that an operator keeps in a snapshot, as parts of a list."""

from __future__ import annotations

import pyarrow as pa

from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.partitioning import key_groups


def as_part(batch: pa.RecordBatch) -> bytes:
    """The part of a list that has the rows of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def rows_in(part: bytes) -> list[pa.RecordBatch]:
    """The rows in one part of a list. An empty part has no rows."""
    return [batch for batch in pa.ipc.open_stream(pa.py_buffer(part)) if batch.num_rows] if part else []


def own_rows(part: bytes, keys: tuple[str, ...], context: OperatorContext) -> list[pa.RecordBatch]:
    """The rows of this subtask's keys in one part of a list."""
    first, last = context.key_groups
    found: list[pa.RecordBatch] = []
    for batch in rows_in(part):
        groups = key_groups(batch, keys, context.max_parallelism)
        own = batch.filter(pa.array((groups >= first) & (groups <= last)))
        if own.num_rows:
            found.append(own)
    return found
