"""The state in savepoints and checkpoints as DataFrames, and savepoints made of DataFrames.

Keyed state is read in Spark tasks, one file per task, and never collected on the driver. Keyed state is written by the
driver, one subtask's part at a time: Spark computes the key groups and keeps the rows, and the driver fetches the rows
of one subtask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.state import State, StateKind
from penstock.core.errors import SettingsError, UsageError
from penstock.core.ids import OperatorId
from penstock.savepoints.catalog import PARTS, EdgeInfo, OperatorInfo, Piece, SnapshotData, StateInfo, read_piece
from penstock.savepoints.rows import GivenState, check_columns, groups_of
from penstock.savepoints.tables import COLUMNAR, LEAVING_WINDOWS, RUNNING, WINDOWS, column_names
from penstock.savepoints.writing import Draft, Parts, operator_id, window_rows
from penstock.settings import JobSettings
from penstock.spark.clock import WallClock
from penstock.sql.schemas import SchemaLike, as_schema, can_be_key
from penstock.state.format import KEY_GROUP
from penstock.state.raw_keyed import as_bytes
from penstock.state.values import pickled

Frame = Any
"""A batch DataFrame of Spark."""


def read_savepoint(spark: Any, path: str | os.PathLike[str]) -> Savepoint:
    """The savepoint or checkpoint at `path`, a path or URI. `path` is the folder of the snapshot, its `_metadata` file,
    or the folder of a job, whose newest retained checkpoint is taken.

    >>> import tempfile
    >>> import penstock as ps
    >>> class InEuros(ps.KeyedBroadcastFunction):
    ...     rates = ps.broadcast_state("rates", key="string", value="double")
    >>> writer = ps.new_savepoint().with_operator_state("in euros", InEuros.rates, {"GBP": 1.25})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     savepoint = ps.read_savepoint(spark, writer.write(f"{folder}/rates"))
    ...     [(state.name, state.kind) for state in savepoint.states("in euros")]
    [('rates', 'broadcast')]

    Raises:
        UsageError: there is no savepoint or checkpoint at `path`.
        CorruptFile: the snapshot cannot be read.

    """
    return Savepoint(spark, SnapshotData(path))


def new_savepoint(*, max_parallelism: int = 128, parallelism: int = 1) -> SavepointWriter:
    """A savepoint for a job that has never run, to be filled with state.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import penstock as ps
    >>> class InEuros(ps.KeyedBroadcastFunction):
    ...     rates = ps.broadcast_state("rates", key="string", value="double")
    >>> writer = ps.new_savepoint().with_operator_state("in euros", InEuros.rates, {"GBP": 1.25, "USD": 0.92})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = writer.write(Path(folder, "rates"))  # for env.run(restore=path), in a program with a step "in euros"
    ...     print(Path(path).name)
    rates

    Args:
        max_parallelism: the number of key groups. The parallelism of the job can never be higher.
        parallelism: into how many parts the state of each operator is written. The driver holds one part at a time. The
            job may have any other parallelism.

    """
    problems = JobSettings(parallelism=parallelism, max_parallelism=max_parallelism).problems()
    if problems:
        raise SettingsError(problems)
    return SavepointWriter(Draft(max_parallelism=max_parallelism, parallelism=parallelism))


class Savepoint:
    """A savepoint or checkpoint to read; made by `read_savepoint`. No method changes the files of the snapshot."""

    def __init__(self, spark: Any, data: SnapshotData) -> None:
        self._spark = spark
        self._data = data

    @property
    def path(self) -> str:
        """The folder of the snapshot."""
        return self._data.location

    @property
    def job(self) -> str:
        """The id of the job that took the snapshot."""
        return self._data.metadata.job

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint or savepoint."""
        return self._data.metadata.checkpoint

    @property
    def kind(self) -> str:
        """The kind of the snapshot: `Savepoint`, `Checkpoint`, ..."""
        return self._data.metadata.kind.value

    def operators(self) -> tuple[OperatorInfo, ...]:
        """The operators of the job, with or without state."""
        return self._data.operators()

    def states(self, operator: str) -> tuple[StateInfo, ...]:
        """The states of an operator. `operator` is the id of the operator, or the name of its step. Reads the files of
        the operator, one after another."""
        return self._data.states(operator)

    def edges(self) -> tuple[EdgeInfo, ...]:
        """The edges on which data was in flight; none in a savepoint."""
        return self._data.edges()

    def state(self, operator: str, name: str) -> Frame:
        """A state as a DataFrame. Spark tasks read the state when the DataFrame is used.

        The columns of keyed state are `key_group`, the key columns, `map_key` (of maps), `value`, and `written_ms` (of
        states with a TTL). The state `timers` has `timer` and `time_us`; `windows`, and `aggregates` of a running
        aggregate in memory, have one column per partial aggregate. State of subtasks has `subtask`, `part` and `value`;
        raw keyed state has `key_group` and `value`. Objects are pickled, in binary columns; raw state is in binary
        columns, unchanged. If several states of the operator have the same name, write `kind:name`.
        """
        pieces, schema = self._data.pieces(operator, name), self._data.schema(operator, name)
        if not self._data.key_schema(operator, name).names and self._data.state(operator, name).kind not in COLUMNAR:
            return _local_frame(self._spark, self._data.parts(operator, name))
        location = self._data.location
        return _read_in_tasks(
            self._spark, [msgspec.msgpack.encode(piece) for piece in pieces], _readable(schema), _piece_reader(location)
        )

    def in_flight(self, edge: int, schema: SchemaLike) -> Frame:
        """The records that were in flight on an edge of an unaligned checkpoint. `schema` gives the columns of the
        stream on this edge, which the snapshot does not record. The records are collected on the driver."""
        columns = as_schema(schema, argument="schema")
        found = list(self._data.in_flight(edge, columns))
        whole = pa.concat_tables(found) if found else self._data.in_flight_schema(columns).empty_table()
        return _local_frame(self._spark, whole)

    def with_state(self, operator: str, name: str, frame: Frame) -> SavepointWriter:
        """A writer for this snapshot with other rows of one state; see `SavepointWriter.with_state`."""
        return self._writer().with_state(operator, name, frame)

    def without(self, operator: str) -> SavepointWriter:
        """A writer for this snapshot without one operator; see `SavepointWriter.without`."""
        return self._writer().without(operator)

    def renamed(self, operator: str, new: str) -> SavepointWriter:
        """A writer for this snapshot with another id for one operator; see `SavepointWriter.renamed`."""
        return self._writer().renamed(operator, new)

    def writer(self) -> SavepointWriter:
        """A writer for this snapshot, to change it or to write it elsewhere."""
        return self._writer()

    def _writer(self) -> SavepointWriter:
        known = self._data.metadata.operators.values()
        groups = max((snapshot.max_parallelism for snapshot in known), default=128)
        parallelism = max((snapshot.parallelism for snapshot in known), default=1)
        return SavepointWriter(Draft(base=self._data, max_parallelism=groups, parallelism=parallelism))


class SavepointWriter:
    """A savepoint that is to be written; made by `new_savepoint`, or from a `Savepoint`. Each method but `write`
    returns another writer, and changes nothing. An operator is named by its id, or by the name that its step has in
    the program."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def with_state(self, operator: str, name: str, frame: Frame) -> SavepointWriter:
        """Replace all rows of a state that the snapshot has. The DataFrame has the columns that `Savepoint.state` gives
        for this state; `key_group` and `written_ms` may be left out."""
        base = self._base()
        owner = base.snapshot_of(operator).operator
        info, table = base.state(owner, name), base.found_table(owner, name)
        if info.kind == StateKind.RAW_KEYED.value:
            raise UsageError(
                f"{name!r} is raw keyed state, which can be copied and not changed: only the function knows its format",
                hint="start a job from the savepoint and let its function write the state anew",
            )
        if table is None:
            parts = _given_parts(frame, info, self._draft_parallelism(owner))
            return SavepointWriter(self._draft.with_parts(owner, StateKind(info.kind), info.name, parts))
        groups = base.snapshot_of(owner).max_parallelism
        if info.name == LEAVING_WINDOWS:
            raise UsageError(
                f"{name!r} has windows whose results were being handed on, which can be copied and not changed",
                hint="start a job from the savepoint, and take another savepoint when the job has handed them on",
            )
        if info.kind == RUNNING:
            raise UsageError(
                f"{name!r} has running aggregates, which can be read and copied, and not changed",
                hint="give the aggregate in the program another name, so that it starts without state",
            )
        if info.kind == WINDOWS:
            rows = _WindowRows(_SparkRows(frame, table.keys, groups), base.schema(owner, name))
            return SavepointWriter(self._draft.with_windows(owner, rows))
        given = GivenState(spec=table.spec, keys=table.keys, rows=_SparkRows(frame, table.keys, groups))
        check_columns(frame.columns, given)
        return SavepointWriter(self._draft.with_keyed(owner, given))

    def with_keyed_state(
        self, operator: str, state: State, frame: Frame, *, keys: Sequence[str] | SchemaLike
    ) -> SavepointWriter:
        """Give an operator a keyed state. The snapshot need not have the operator.

        Args:
            operator: the name, or the id, of the step.
            state: the declaration of the state, as it stands in the function: `MyFunction.seen`.
            frame: a DataFrame with the key columns and `value`; for maps also `map_key`; for states with a TTL also
                `written_ms`, if you like. A list has a row per element. Objects are pickled, in a binary column.
            keys: the names of the key columns, in the order of `key_by`; the columns keep the types that they have in
                the DataFrame. Or a schema of the key columns.

        """
        if not isinstance(state, State) or not state.spec.kind.is_keyed:
            raise UsageError(f"with_keyed_state takes the declaration of a keyed state, not {state!r}")
        return self._with_keyed(operator, state, frame, keys)

    def with_timers(self, operator: str, frame: Frame, *, keys: Sequence[str] | SchemaLike) -> SavepointWriter:
        """Give an operator timers. The DataFrame has the key columns, `timer` (`event-time` or `processing-time`) and
        `time_us`, in microseconds since 1970."""
        return self._with_keyed(operator, None, frame, keys)

    def with_operator_state(
        self, operator: str, state: State, values: Iterable[Any] | Mapping[Any, Any]
    ) -> SavepointWriter:
        """Give an operator a state of subtasks. `values` are the elements of a split or union list, or the entries of a
        broadcast state."""
        if not isinstance(state, State) or not state.spec.kind.is_of_subtask:
            raise UsageError(f"with_operator_state takes the declaration of a state of subtasks, not {state!r}")
        spec, owner = state.spec, self._operator(operator)
        if spec.kind is StateKind.BROADCAST:
            parts: tuple[bytes, ...] = (pickled(dict(values)),)
        else:
            parts = tuple(as_bytes(value, state) if spec.is_raw else pickled(value) for value in values)
        return SavepointWriter(self._draft.with_parts(owner, spec.kind, spec.name, ((0, parts),)))

    def without(self, operator: str) -> SavepointWriter:
        """Leave an operator out, with all its state."""
        return SavepointWriter(self._draft.without(self._base().snapshot_of(operator).operator))

    def renamed(self, operator: str, new: str) -> SavepointWriter:
        """Give an operator another id. `new` is the name, or the id, of the step that is to take the operator's
        state."""
        return SavepointWriter(self._draft.with_id(self._base().snapshot_of(operator).operator, operator_id(new)))

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write the savepoint into the folder `path`, which must be empty or must not exist. Returns the full path of
        the folder, for `env.start(restore=...)`.

        Raises:
            UsageError: rows do not fit their state, or the folder is not empty.

        """
        return self._draft.write(path, now=WallClock().now())

    def _with_keyed(
        self, operator: str, state: State | None, frame: Frame, keys: Sequence[str] | SchemaLike
    ) -> SavepointWriter:
        owner, schema = self._operator(operator), _key_schema(frame, keys)
        base = self._draft.base
        groups = self._draft.max_parallelism
        if base is not None and owner in base.metadata.operators:
            groups = base.metadata.operators[owner].max_parallelism
        rows = _SparkRows(frame, schema, groups)
        given = GivenState(spec=None if state is None else state.spec, keys=schema, rows=rows)
        check_columns(frame.columns, given)
        return SavepointWriter(self._draft.with_keyed(owner, given))

    def _operator(self, given: str) -> OperatorId:
        base = self._draft.base
        if base is not None and any(given in (info.id, info.name) for info in base.operators()):
            return base.snapshot_of(given).operator
        return operator_id(given)

    def _base(self) -> SnapshotData:
        if self._draft.base is None:
            raise UsageError(
                "a savepoint made by new_savepoint has no operators to change",
                hint="use with_keyed_state to give an operator state",
            )
        return self._draft.base

    def _draft_parallelism(self, operator: OperatorId) -> int:
        return self._base().metadata.operators[operator].parallelism


# --- from DataFrames -------------------------------------------------------------------------------------------------


class _SparkRows:
    """The rows of a DataFrame, by key group. Spark computes the key groups once, and keeps the rows until the rows of
    the last key group have been fetched."""

    def __init__(self, frame: Frame, keys: pa.Schema, groups: int) -> None:
        (self._column,) = column_names([KEY_GROUP], keys.names)
        self._given = frame
        self._keys = keys
        self._groups = groups
        self._frame: Frame | None = None

    def of_groups(self, first: int, last: int) -> pa.Table:
        """The rows of these key groups, on the driver."""
        if self._frame is None:
            self._frame = self._grouped().persist()
        column = self._frame[self._column]
        found: pa.Table = self._frame.where((column >= first) & (column <= last)).toArrow()
        if last >= self._groups - 1:
            self._frame.unpersist()
            self._frame = None
        return found

    def _grouped(self) -> Frame:
        from pyspark.sql.types import IntegerType, StructField, StructType

        column, keys, groups = self._column, self._keys, self._groups
        frame = self._given.drop(column) if column in self._given.columns else self._given
        missing = [name for name in keys.names if name not in frame.columns]
        if missing:
            raise UsageError(f"the DataFrame has no key column {missing[0]!r}")

        def grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch.append_column(column, groups_of(batch, keys, groups))

        schema = StructType([*frame.schema.fields, StructField(column, IntegerType())])
        return frame.mapInArrow(grouped, schema)


class _WindowRows:
    """The rows of a state of windows, with the types that the state has in the snapshot."""

    def __init__(self, rows: _SparkRows, schema: pa.Schema) -> None:
        self._rows = rows
        self._schema = schema

    def of_groups(self, first: int, last: int) -> pa.Table:
        """The rows of these key groups."""
        return window_rows(self._rows.of_groups(first, last), self._schema)


def _key_schema(frame: Frame, keys: Sequence[str] | SchemaLike) -> pa.Schema:
    from penstock.spark.arrow_types import to_arrow_schema

    if isinstance(keys, Sequence) and not isinstance(keys, str) and all(isinstance(key, str) for key in keys):
        columns = to_arrow_schema(frame.schema)
        missing = [key for key in keys if key not in columns.names]
        if missing or not keys:
            raise UsageError(
                f"keys are {list(keys)}, and must be columns of the DataFrame, at least one; the DataFrame has the "
                f"columns {', '.join(columns.names)}"
            )
        schema = pa.schema([pa.field(key, columns.field(key).type) for key in keys])
    else:
        schema = as_schema(keys, argument="keys")  # type: ignore[arg-type]
    for field in schema:
        if not can_be_key(field.type):
            raise UsageError(f"key column {field.name!r} is of type {field.type}, which cannot be a key")
    return schema


def _given_parts(frame: Frame, info: StateInfo, parallelism: int) -> Parts:
    if sorted(frame.columns) != sorted(PARTS.names):
        raise UsageError(
            f"state {info.name!r} has the columns {', '.join(PARTS.names)}, and the DataFrame has the columns "
            f"{', '.join(frame.columns)}"
        )
    rows = frame.select(*PARTS.names).orderBy("subtask", "part").collect()
    found: dict[int, list[bytes]] = {}
    for row in rows:
        if not 0 <= row["subtask"] < parallelism:
            raise UsageError(
                f"the operator of state {info.name!r} has {parallelism} subtasks, counted from 0; "
                f"the DataFrame has subtask {row['subtask']}"
            )
        found.setdefault(row["subtask"], []).append(bytes(row["value"]))
    if info.kind == StateKind.BROADCAST.value and any(len(parts) > 1 for parts in found.values()):
        raise UsageError(f"broadcast state {info.name!r} has one part per subtask, and the DataFrame has more")
    return tuple((subtask, tuple(parts)) for subtask, parts in found.items())


# --- to DataFrames ---------------------------------------------------------------------------------------------------


def _readable(schema: pa.Schema) -> pa.Schema:
    """The columns with types that Spark has: unsigned numbers become wider, times of day become text."""
    return pa.schema([_readable_type(field) for field in schema])


def _readable_type(field: Any) -> Any:
    wider: dict[Any, Any] = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    kind = wider.get(field.type, field.type)
    if pa.types.is_time(kind):
        kind = pa.string()
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", kind.tz)
    return pa.field(field.name, kind)


def _piece_reader(location: str) -> Callable[[bytes], Iterator[pa.Table]]:
    def read(piece: bytes) -> Iterator[pa.Table]:
        return read_piece(msgspec.msgpack.decode(piece, type=Piece), location)

    return read


def _read_in_tasks(
    spark: Any, pieces: list[bytes], schema: pa.Schema, read: Callable[[bytes], Iterator[pa.Table]]
) -> Frame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema)
    if not pieces:
        return spark.createDataFrame([], columns)

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            column: Any = batch.column(0)
            for piece in column.to_pylist():
                for table in read(piece):
                    yield from table.cast(schema).to_batches()

    # One piece per task.
    frame = spark.createDataFrame([(piece,) for piece in pieces], "piece binary").repartition(len(pieces))
    return frame.mapInArrow(tables, columns)


def _local_frame(spark: Any, table: pa.Table) -> Frame:
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = _readable(table.schema)
    return spark.createDataFrame(table.cast(schema), from_arrow_schema(schema))
