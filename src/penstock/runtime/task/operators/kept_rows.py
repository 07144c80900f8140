"""Rows that an operator keeps in a snapshot, as parts of a list."""

from __future__ import annotations

import pyarrow as pa

from penstock.api.arrow_bounds import NOT_ARROW, check_size, check_stream, check_types
from penstock.core.errors import CorruptFile, UsageError
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.user_code import describe_columns
from penstock.runtime.task.partitioning import key_groups

_LEAST_BYTES_ROWS = 8
"""How many rows a byte holds at most: a column of truth values takes a bit for each row."""


def as_part(batch: pa.RecordBatch) -> bytes:
    """The part of a list that has the rows of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def rows_in(part: bytes, name: str, schema: pa.Schema | None = None) -> list[pa.RecordBatch]:
    """The rows in one part of a list that the step of this name kept. An empty part has no rows. `schema` is the schema
    of the step's rows in the program, if it is known: a type that the program itself has is not refused. Raises
    `CorruptFile`, and `UsageError` if the rows have other columns than in the program."""
    if not part:
        return []
    try:
        buffer = pa.py_buffer(part)
        check_stream(buffer)
        stream = pa.ipc.open_stream(buffer)
        known = [] if schema is None else schema.types
        check_types(field for field in stream.schema if field.type not in known)
        table = stream.read_all()
        table.validate(full=True)
        check_size(table, len(part))
        if table.num_rows > _LEAST_BYTES_ROWS * len(part):
            raise ValueError(f"the part has {len(part)} bytes, which cannot hold {table.num_rows} rows")
    except NOT_ARROW as error:
        raise CorruptFile(
            f"the rows that {name!r} kept in the snapshot cannot be read: {error}",
            hint="restore the file from a copy, or restore the job from another checkpoint or savepoint",
        ) from error
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    if batches and schema is not None and (table.schema.names, table.schema.types) != (schema.names, schema.types):
        raise UsageError(
            f"the rows that {name!r} kept in the snapshot have the columns {describe_columns(table.schema)}, and its "
            f"rows have {describe_columns(schema)} in this program",
            hint="start the program as it was, stop it with drain, and start the changed program from there",
        )
    return batches


def own_rows(
    part: bytes, keys: tuple[str, ...], context: OperatorContext, schema: pa.Schema | None = None
) -> list[pa.RecordBatch]:
    """The rows of this subtask's keys in one part of a list. `schema` is as in `rows_in`."""
    first, last = context.key_groups
    found: list[pa.RecordBatch] = []
    for batch in rows_in(part, context.name, schema):
        groups = key_groups(batch, keys, context.max_parallelism)
        own = batch.filter(pa.array((groups >= first) & (groups <= last)))
        if own.num_rows:
            found.append(own)
    return found
