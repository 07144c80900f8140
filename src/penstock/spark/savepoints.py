"""The state in savepoints and checkpoints as DataFrames, and savepoints made of DataFrames.

Keyed state is read in Spark tasks, a file each, and never collected on the driver. It is written by the driver, a
subtask's share at a time: Spark computes the key groups and keeps the rows, the driver fetches those of one subtask.
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
from penstock.savepoints.tables import WINDOWS, column_names
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
    """The savepoint or checkpoint at `path`: its folder, its `_metadata` file, or the folder of a job, whose newest
    retained checkpoint is taken; a path or a URI.

    Raises:
        UsageError: there is none.
        CorruptFile: it cannot be read.

    """
    return Savepoint(spark, SnapshotData(path))


def new_savepoint(*, max_parallelism: int = 128, parallelism: int = 1) -> SavepointWriter:
    """A savepoint for a job that never ran, to be filled with state.

    Args:
        max_parallelism: the number of key groups; the job can never be rescaled beyond it.
        parallelism: into how many parts each operator's state is written. The job may have any other; the driver holds
            one part at a time.

    """
    problems = JobSettings(parallelism=parallelism, max_parallelism=max_parallelism).problems()
    if problems:
        raise SettingsError(problems)
    return SavepointWriter(Draft(max_parallelism=max_parallelism, parallelism=parallelism))


class Savepoint:
    """A savepoint or checkpoint to look at; made by `read_savepoint`. Nothing here changes it."""

    def __init__(self, spark: Any, data: SnapshotData) -> None:
        self._spark = spark
        self._data = data

    @property
    def path(self) -> str:
        """Its folder."""
        return self._data.location

    @property
    def job(self) -> str:
        """The job that took it."""
        return self._data.metadata.job

    @property
    def checkpoint(self) -> int:
        """Its number."""
        return self._data.metadata.checkpoint

    @property
    def kind(self) -> str:
        """What it is: `Savepoint`, `Checkpoint`, ..."""
        return self._data.metadata.kind.value

    def operators(self) -> tuple[OperatorInfo, ...]:
        """The operators of the job, with or without state."""
        return self._data.operators()

    def states(self, operator: str) -> tuple[StateInfo, ...]:
        """The states of an operator: its id, or the name of its step. Reads its files, one after another."""
        return self._data.states(operator)

    def edges(self) -> tuple[EdgeInfo, ...]:
        """The edges on which data was in flight; none in a savepoint."""
        return self._data.edges()

    def state(self, operator: str, name: str) -> Frame:
        """A state as a DataFrame, read by Spark tasks when it is used.

        Keyed state has the columns `key_group`, the key columns, `map_key` (of maps), `value`, and `written_ms` (with a
        TTL); the state `timers` has `timer` and `time_us`; `windows` has one column per partial aggregate. State of
        subtasks has `subtask`, `part` and `value`, raw keyed state `key_group` and `value`. Objects are binary,
        pickled; raw state is binary, as it is. Where several states of the operator have one name, write `kind:name`.
        """
        pieces, schema = self._data.pieces(operator, name), self._data.schema(operator, name)
        if not self._data.key_schema(operator, name).names and self._data.state(operator, name).kind != WINDOWS:
            return _local_frame(self._spark, self._data.parts(operator, name))
        location = self._data.location
        return _read_in_tasks(
            self._spark, [msgspec.msgpack.encode(piece) for piece in pieces], _readable(schema), _piece_reader(location)
        )

    def in_flight(self, edge: int, schema: SchemaLike) -> Frame:
        """The records that were in flight on an edge of an unaligned checkpoint. The snapshot does not say what columns
        the stream had there: `schema` does. Collected on the driver."""
        columns = as_schema(schema, argument="schema")
        found = list(self._data.in_flight(edge, columns))
        whole = pa.concat_tables(found) if found else self._data.in_flight_schema(columns).empty_table()
        return _local_frame(self._spark, whole)

    def with_state(self, operator: str, name: str, frame: Frame) -> SavepointWriter:
        """The same with other rows of one state; see `SavepointWriter.with_state`."""
        return self._writer().with_state(operator, name, frame)

    def without(self, operator: str) -> SavepointWriter:
        """The same without one operator."""
        return self._writer().without(operator)

    def renamed(self, operator: str, new: str) -> SavepointWriter:
        """The same with another id for one operator."""
        return self._writer().renamed(operator, new)

    def writer(self) -> SavepointWriter:
        """The same, to be written elsewhere, with changes or without."""
        return self._writer()

    def _writer(self) -> SavepointWriter:
        known = self._data.metadata.operators.values()
        groups = max((snapshot.max_parallelism for snapshot in known), default=128)
        parallelism = max((snapshot.parallelism for snapshot in known), default=1)
        return SavepointWriter(Draft(base=self._data, max_parallelism=groups, parallelism=parallelism))


class SavepointWriter:
    """A savepoint that is to be written; each method returns another one. Made by `new_savepoint`, or from a
    `Savepoint`. An operator is named by its id, or by the name that its step has in the program."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def with_state(self, operator: str, name: str, frame: Frame) -> SavepointWriter:
        """Other rows for a state that the snapshot has: a DataFrame of the columns that reading it gives, of which
        `key_group` and `written_ms` may be left out. All rows of the state are replaced."""
        base = self._base()
        owner = base.snapshot_of(operator).operator
        info, table = base.state(owner, name), base.found_table(owner, name)
        if info.kind == StateKind.RAW_KEYED.value:
            raise UsageError(
                f"{name!r} is raw keyed state, whose format only the function knows: it is copied, and not changed",
                hint="start a job from the savepoint and let its function write the state anew",
            )
        if table is None:
            parts = _given_parts(frame, info, self._draft_parallelism(owner))
            return SavepointWriter(self._draft.with_parts(owner, StateKind(info.kind), info.name, parts))
        groups = base.snapshot_of(owner).max_parallelism
        if info.kind == WINDOWS:
            rows = _WindowRows(_SparkRows(frame, table.keys, groups), base.schema(owner, name))
            return SavepointWriter(self._draft.with_windows(owner, rows))
        given = GivenState(spec=table.spec, keys=table.keys, rows=_SparkRows(frame, table.keys, groups))
        check_columns(frame.columns, given)
        return SavepointWriter(self._draft.with_keyed(owner, given))

    def with_keyed_state(
        self, operator: str, state: State, frame: Frame, *, keys: Sequence[str] | SchemaLike
    ) -> SavepointWriter:
        """A keyed state of an operator that may never have run.

        Args:
            operator: the name, or the id, of the step.
            state: its declaration, as it stands in the function: `MyFunction.seen`.
            frame: a DataFrame with the key columns, `value`, for maps `map_key`, and if you like `written_ms` for
                states with a TTL. Lists have a row per element. Objects are binary, pickled.
            keys: names of the key columns, in the order of `key_by`, of the types that the DataFrame has; or a schema.

        """
        if not isinstance(state, State) or not state.spec.kind.is_keyed:
            raise UsageError(f"with_keyed_state takes the declaration of a keyed state, not {state!r}")
        return self._with_keyed(operator, state, frame, keys)

    def with_timers(self, operator: str, frame: Frame, *, keys: Sequence[str] | SchemaLike) -> SavepointWriter:
        """The timers of an operator: a DataFrame with the key columns, `timer` (`event-time` or `processing-time`) and
        `time_us`, microseconds since 1970."""
        return self._with_keyed(operator, None, frame, keys)

    def with_operator_state(
        self, operator: str, state: State, values: Iterable[Any] | Mapping[Any, Any]
    ) -> SavepointWriter:
        """A state of subtasks: the elements of a split or union list, or the entries of a broadcast state."""
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
        """Give an operator another id: that of the step that is to take its state."""
        return SavepointWriter(self._draft.with_id(self._base().snapshot_of(operator).operator, operator_id(new)))

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write it into the folder `path`, which must be empty or not there yet, and return its full path: what
        `env.start(restore=...)` takes.

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
            raise UsageError("a new savepoint has no operators to change", hint="use with_keyed_state")
        return self._draft.base

    def _draft_parallelism(self, operator: OperatorId) -> int:
        return self._base().metadata.operators[operator].parallelism


# --- from DataFrames -------------------------------------------------------------------------------------------------


class _SparkRows:
    """Rows of a DataFrame, by key group. Spark computes the groups once, and keeps the rows until the last is read."""

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
    """Rows of a window, with the types that its state has."""

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
            raise UsageError(f"keys are {list(keys)}; the DataFrame has {', '.join(columns.names)}")
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
            f"state {info.name!r} has the columns {', '.join(PARTS.names)}, not {', '.join(frame.columns)}"
        )
    rows = frame.select(*PARTS.names).orderBy("subtask", "part").collect()
    found: dict[int, list[bytes]] = {}
    for row in rows:
        if not 0 <= row["subtask"] < parallelism:
            raise UsageError(f"state {info.name!r} has {parallelism} subtasks; {row['subtask']} was given")
        found.setdefault(row["subtask"], []).append(bytes(row["value"]))
    if info.kind == StateKind.BROADCAST.value and any(len(parts) > 1 for parts in found.values()):
        raise UsageError(f"broadcast state {info.name!r} has one part per subtask")
    return tuple((subtask, tuple(parts)) for subtask, parts in found.items())


# --- to DataFrames ---------------------------------------------------------------------------------------------------


def _readable(schema: pa.Schema) -> pa.Schema:
    """The columns with types that Spark has: unsigned numbers become wider, times of day text."""
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


def _piece_reader(location: str) -> Callable[[bytes], pa.Table]:
    def read(piece: bytes) -> pa.Table:
        return read_piece(msgspec.msgpack.decode(piece, type=Piece), location)

    return read


def _read_in_tasks(spark: Any, pieces: list[bytes], schema: pa.Schema, read: Callable[[bytes], pa.Table]) -> Frame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema)
    if not pieces:
        return spark.createDataFrame([], columns)

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            column: Any = batch.column(0)
            for piece in column.to_pylist():
                yield from read(piece).cast(schema).to_batches()

    # One piece per task, as far as there are cores.
    frame = spark.createDataFrame([(piece,) for piece in pieces], "piece binary").repartition(len(pieces))
    return frame.mapInArrow(tables, columns)


def _local_frame(spark: Any, table: pa.Table) -> Frame:
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = _readable(table.schema)
    return spark.createDataFrame(table.cast(schema), from_arrow_schema(schema))
