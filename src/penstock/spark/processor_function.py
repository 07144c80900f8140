"""A PySpark `StatefulProcessor` as a function of Penstock: the part that runs in a slot.

In every attempt the processor is unpickled and initialised once, when the task starts, and closed when the task ends. A
slot has no JVM: schemas are parsed on the driver (`penstock.spark.processors`) and come with the plan.
"""

# Names and parameters are those of PySpark's classes, which processors call.
# ruff: noqa: N802, N803

from __future__ import annotations

import copy
import datetime
import importlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import Row

from penstock.api.functions import EPOCH, FunctionContext, KeyedContext, Timer
from penstock.api.grouped import GroupedFunction, Wrong
from penstock.core.errors import UsageError
from penstock.spark.processor_states import Variable, as_plain, rows_with
from penstock.sql.column_values import REFUSED, array_of, check_objects, first_misfit
from penstock.sql.python_values import to_python

EVENT_TIME = "eventtime"
PROCESSING_TIME = "processingtime"
NO_TIME = "none"

_MILLISECOND = datetime.timedelta(milliseconds=1)
_UNKNOWN = -1
_BEFORE_THE_FIRST_WATERMARK = 0


@dataclass(frozen=True, kw_only=True)
class InitialRows:
    """The rows of an initial state: Parquet files in a folder, or a table."""

    folder: str | None = None
    table: bytes | None = None
    """The table as an Arrow stream."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows. Blocks."""
        if self.table is not None:
            with pa.ipc.open_stream(self.table) as stream:
                yield from stream
        if self.folder is not None:
            from pyarrow import dataset

            yield from dataset.dataset(self.folder, format="parquet").to_batches()


class ProcessorFunction(GroupedFunction):
    """Runs a processor."""

    def __init__(
        self,
        pickled: bytes,
        *,
        variables: Sequence[Variable],
        schema: pa.Schema,
        keys: tuple[str, ...],
        time_mode: str,
        time_column: str | None,
    ) -> None:
        self.schema = schema
        self.dropped_states = ()
        self.initial: Any = None
        """The initial state: `InitialRows`, or an object that `landed` turns into `InitialRows` when the job starts;
        None if there is no initial state."""
        self._pickled = pickled
        self._variables = {f"variable {variable.name}": variable for variable in variables}
        self._keys = list(keys)
        self._time_mode = time_mode
        self._time_column = time_column if time_mode == EVENT_TIME else None
        self._processor: Any = None
        self._times: Any = None
        for attribute, variable in self._variables.items():
            vars(self)[attribute] = variable.state()

    # --- its life ------------------------------------------------------------------------

    def open(self, context: FunctionContext) -> None:
        """Unpickle the processor and call its `init`, which declares its state."""
        opened = {v.name: v.opened(vars(self)[attribute]) for attribute, v in self._variables.items()}
        kinds = {v.name: v for v in self._variables.values()}
        assert isinstance(context, KeyedContext)
        self._key_row = rows_with(self._keys)
        self._row_schema: pa.Schema | None = None
        self._handle = RunningHandle(opened, kinds, context, self._time_mode)
        processor = pickle.loads(self._pickled)  # noqa: S301  # the user's own, from the plan
        processor.init(self._handle)
        self._handle.initialised = True
        self._processor = processor

    def close(self) -> None:
        """Close the processor, if `init` has returned."""
        processor, self._processor = self._processor, None
        if processor is not None:
            processor.close()

    # --- rows ----------------------------------------------------------------------------

    def admitted(self, batch: pa.RecordBatch, watermark: datetime.datetime | None) -> pa.RecordBatch:
        """The rows that are not late; without event time, all rows."""
        self._times = None
        if self._time_column is None or watermark is None:
            return batch
        column = batch.column(self._time_column)
        # A row without a time is never late.
        late: Any = pc.coalesce(pc.less_equal(column, pa.scalar(watermark, column.type)), pa.scalar(value=False))
        return batch.filter(pc.invert(late)) if pc.any(late).as_py() else batch

    def rows_of(self, batch: pa.RecordBatch) -> Any:
        """The batch as PySpark rows with all columns."""
        if self._row_schema != batch.schema:
            self._row_schema, self._row = batch.schema, rows_with(batch.schema.names)
        return list(map(self._row, zip(*map(to_python, batch.columns), strict=True)))

    def on_group(self, rows: Any, context: KeyedContext) -> Iterable[Any] | None:
        """Call `handleInputRows` with the rows of a key."""
        times = self._times
        if times is None:
            times = self._times = self._timer_values(context)
        result: Iterable[Any] | None = self._processor.handleInputRows(self._key(context), self._passed(rows), times)
        return result

    def on_timer(self, timer: Timer, context: KeyedContext) -> Iterator[Any]:
        """Call `handleExpiredTimer` for a timer of a key. The processor sees the timer until the rows that it returned
        have been consumed. Then the timer is gone."""
        expiry_ms = timer.time_us // 1_000
        self._handle.begin_firing(expiry_ms)
        try:
            result = self._processor.handleExpiredTimer(
                self._key_row(self._key(context)), self._timer_values(context), ExpiredTimerInfo(expiry_ms)
            )
            if result is not None:
                yield from result
        finally:
            self._handle.end_firing()

    def initial_batches(self) -> Iterable[pa.RecordBatch]:
        """The rows of the initial state."""
        return () if self.initial is None else self.initial.batches()

    def landed(self, folder: Callable[[], Path] | None) -> ProcessorFunction:
        """The function with the files of its initial state in the folder that `folder` makes; without an initial state
        if `folder` is None."""
        if self.initial is None or isinstance(self.initial, InitialRows):
            return self
        made = copy.copy(self)
        made.initial = None if folder is None else self.initial.land(folder())
        return made

    def on_initial(self, rows: Any, context: KeyedContext) -> None:
        """Call `handleInitialState` with the initial rows of a key, one by one."""
        times, key = self._timer_values(context), self._key(context)
        for row in self._passed(rows):
            self._processor.handleInitialState(key, row, times)

    def _passed(self, rows: Any) -> Iterator[Any]:
        return iter(rows)

    def _key(self, context: KeyedContext) -> tuple[Any, ...]:
        return context.key if len(self._keys) > 1 else (context.key,)

    def _timer_values(self, context: KeyedContext) -> TimerValues:
        if self._time_mode == NO_TIME:
            return TimerValues(_UNKNOWN, _UNKNOWN)
        now_ms = _in_ms(context.processing_time)
        if self._time_mode == PROCESSING_TIME:
            return TimerValues(now_ms, _UNKNOWN)
        watermark = context.watermark
        return TimerValues(now_ms, _BEFORE_THE_FIRST_WATERMARK if watermark is None else _in_ms(watermark))

    # --- results -------------------------------------------------------------------------

    def batches_of(self, made: Sequence[Any], wrong: Wrong) -> Iterable[pa.RecordBatch]:
        """The rows that the processor has returned, as one batch."""
        names = self.schema.names
        for row in made:
            if not isinstance(row, Row):
                raise wrong(f"expected rows of {_described(self.schema)}; got {type(row).__name__} {row!r}")
            if getattr(row, "__fields__", None) != names:
                made = [_in_order(each, names, wrong) for each in made]
                break
        arrays = [
            _array(values, field, wrong) for values, field in zip(zip(*made, strict=True), self.schema, strict=True)
        ]
        return [pa.RecordBatch.from_arrays(arrays, schema=self.schema)]


class PandasProcessorFunction(ProcessorFunction):
    """Runs a processor that takes and makes pandas DataFrames."""

    chunk_rows = 10_000
    """The most rows of a DataFrame that is handed to a processor."""
    timezone = "UTC"
    """The time zone of the times in DataFrames, which have no time zone of their own."""

    def rows_of(self, batch: pa.RecordBatch) -> Any:
        """The batch as a DataFrame with all columns."""
        frame = batch.to_pandas()
        for field in batch.schema:
            if pt.is_timestamp(field.type) and field.type.tz is not None:
                frame[field.name] = frame[field.name].dt.tz_convert(self.timezone).dt.tz_localize(None)
        return frame

    def _passed(self, rows: Any) -> Iterator[Any]:
        chunk = self.chunk_rows
        return (rows[start : start + chunk].reset_index(drop=True) for start in range(0, len(rows), chunk))

    def batches_of(self, made: Sequence[Any], wrong: Wrong) -> Iterable[pa.RecordBatch]:
        """A batch for each DataFrame that has rows."""
        pd = _pandas()
        names = self.schema.names
        for frame in made:
            if not isinstance(frame, pd.DataFrame):
                raise wrong(f"expected DataFrames of {_described(self.schema)}; got {type(frame).__name__}")
            if frame.empty:
                continue
            if sorted(map(str, frame.columns)) != sorted(names):
                raise wrong(
                    f"expected DataFrames of {_described(self.schema)}; got a DataFrame with the columns "
                    f"{', '.join(map(str, frame.columns))}"
                )
            columns = [self._column(frame[field.name], field, wrong) for field in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, series: Any, field: pa.Field[Any], wrong: Wrong) -> Any:
        if pt.is_timestamp(field.type) and field.type.tz is not None and getattr(series.dtype, "tz", None) is None:
            series = _pandas().to_datetime(series).dt.tz_localize(self.timezone)
        try:
            check_objects(series, field.type)
            return pa.Array.from_pandas(series, type=field.type)
        except REFUSED as error:
            raise wrong(f"column {field.name!r} must be {field.type}; {error}") from error


class RunningHandle(StatefulProcessorHandle):
    """The handle that a processor's `init` gets in a slot."""

    def __init__(
        self, opened: Mapping[str, Any], variables: Mapping[str, Variable], context: KeyedContext, time_mode: str
    ) -> None:
        self._opened = opened
        self._variables = variables
        self._context = context
        self._time_mode = time_mode
        self._firing: int | None = None
        self._lists_firing = False
        self.initialised = False

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:  # noqa: ARG002
        """The value state of that name."""
        return self._state(stateName)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:  # noqa: ARG002
        """The list state of that name."""
        return self._state(stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,  # noqa: ARG002
        valueSchema: Any,  # noqa: ARG002
        ttlDurationMs: int | None = None,  # noqa: ARG002
    ) -> Any:
        """The map state of that name."""
        return self._state(stateName)

    def _state(self, name: str) -> Any:
        if self.initialised:
            raise UsageError(f"state {name!r} was asked for after init", hint="ask the handle for states in init only")
        found = self._opened.get(name)
        if found is None:
            raise UsageError(
                f"init asked for state {name!r} in a slot, and did not ask for this state on the driver",
                hint="let init ask for the same states wherever init runs",
            )
        return found

    def deleteIfExists(self, stateName: str) -> None:
        """Nothing is left to do: `init` has asked for the same on the driver, and the state was not restored."""
        refuse_deletion(stateName, self._variables, initialised=self.initialised)

    # --- timers --------------------------------------------------------------------------

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the key. A timer that is set already stays as it is."""
        self._check_timers("registerTimer")
        if expiryTimestampMs == self._firing:
            self._lists_firing = True
        elif self._time_mode == EVENT_TIME:
            self._context.timers.at_event_time(expiryTimestampMs * 1_000)
        else:
            self._context.timers.at_processing_time(expiryTimestampMs * 1_000)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the key."""
        self._check_timers("deleteTimer")
        if expiryTimestampMs == self._firing:
            self._lists_firing = False
        elif self._time_mode == EVENT_TIME:
            self._context.timers.delete_event_time(expiryTimestampMs * 1_000)
        else:
            self._context.timers.delete_processing_time(expiryTimestampMs * 1_000)

    def listTimers(self) -> Iterator[int]:
        """The times at which the timers of the key expire, in order."""
        self._check_timers("listTimers")
        timers = self._context.timers
        times = timers.event_times() if self._time_mode == EVENT_TIME else timers.processing_times()
        found = [_in_ms(time) for time in times]
        if self._firing is not None and self._lists_firing:
            found.append(self._firing)
        return iter(sorted(found))

    def begin_firing(self, expiry_ms: int) -> None:
        """A timer of the key fires. The processor still sees the timer."""
        self._firing = expiry_ms
        self._lists_firing = True

    def end_firing(self) -> None:
        """The timer that fired is gone, even if the processor has set or deleted it meanwhile."""
        self._firing = None

    def _check_timers(self, method: str) -> None:
        if not self.initialised:
            refuse_timers_in_init(method)
        if self._time_mode == NO_TIME:
            raise UsageError(
                f"{method} was called with time mode None", hint='give time_mode="ProcessingTime" or "EventTime"'
            )


def refuse_timers_in_init(method: str) -> NoReturn:
    """Raise `UsageError`: a timer belongs to a key, and in `init` there is no key."""
    raise UsageError(f"{method} was called in init, where there is no key", hint="use timers in handleInputRows")


def refuse_deletion(name: str, others: Mapping[str, Any], *, initialised: bool) -> None:
    """Raise `UsageError` if a state cannot be deleted: after `init`, or if `init` also asks for the state."""
    if initialised:
        raise UsageError(f"state {name!r} was deleted after init", hint="call deleteIfExists in init only")
    if name in others:
        raise UsageError(
            f"init deletes state {name!r} and also asks for this state",
            hint="do only one of the two; clear() empties a state",
        )


def _pandas() -> Any:
    # Imported here, because the import takes long, and only slots with pandas processors need pandas.
    return importlib.import_module("pandas")


def _in_ms(time: datetime.datetime) -> int:
    return (time - EPOCH) // _MILLISECOND


def _in_order(row: Any, names: list[str], wrong: Wrong) -> Any:
    fields = getattr(row, "__fields__", None)
    if fields is None or sorted(fields) != sorted(names):
        got = f"a row with the fields {', '.join(fields)}" if fields else f"{row!r}, whose fields have no names"
        raise wrong(f"expected rows with the fields {', '.join(names)}; got {got}")
    by_name = dict(zip(fields, row, strict=True))
    return [by_name[name] for name in names]


def _array(values: Any, field: pa.Field[Any], wrong: Wrong) -> Any:
    try:
        if pt.is_nested(field.type):
            plain = as_plain(field.type)
            values = [plain(value) for value in values]
        return array_of(values, field.type)
    except REFUSED as error:
        raise wrong(f"field {field.name!r} must be {field.type}; {_reason(values, field, error)}") from error


def _reason(values: Any, field: pa.Field[Any], error: Exception) -> str:
    found = first_misfit(values, field.type)
    return str(error) if found is None else f"got {found[1]}: {found[2]}"


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
