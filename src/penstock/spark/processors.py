"""Makes a step of a PySpark `StatefulProcessor`, on the driver: checks, the schemas of the state, the initial state.

On the driver `init` runs once, on a copy of the processor, with a handle that only records the states that `init` asks
for. (Spark does the same before a query starts.) So schemas that are given as text are parsed on the driver, and a
wrong declaration is refused when the program is built.
"""

# Names and parameters are those of PySpark's classes, which processors call.
# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import pyarrow as pa
from pyspark.sql.streaming import stateful_processor as spark_api
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from penstock.api.grouped import HostedProcessor
from penstock.api.state import StateKind
from penstock.core.errors import UsageError
from penstock.spark.arrow_types import to_arrow_schema
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.processor_function import (
    EVENT_TIME,
    NO_TIME,
    PROCESSING_TIME,
    InitialRows,
    PandasProcessorFunction,
    ProcessorFunction,
    refuse_deletion,
    refuse_timers_in_init,
)
from penstock.spark.processor_states import Variable
from penstock.sql.schemas import as_schema, check_schema

_TIME_MODES = (NO_TIME, PROCESSING_TIME, EVENT_TIME)
_OUTPUT_MODES = ("append", "update")
_CHUNK_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ZONE_CONF = "spark.sql.session.timeZone"


class LandedLater:
    """An initial state that is a DataFrame, before the job starts. `land` turns the DataFrame into files."""

    def __init__(self, frame: Any) -> None:
        self._source = DataFrameSource(frame)

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns."""
        return self._source.schema

    def land(self, folder: Path) -> InitialRows:
        """Have Spark write the DataFrame into `folder`."""
        self._source.land(folder)
        return InitialRows(folder=str(folder))


def host_processor(given: HostedProcessor, session: Any = None) -> ProcessorFunction:
    """The function that runs a processor. Raises `UsageError` if the processor, a mode or a schema is wrong."""
    processor = _checked_processor(given.processor)
    time_mode = _mode(given.time_mode, _TIME_MODES, "time_mode", "'None', 'ProcessingTime' or 'EventTime'")
    _check_output_mode(given.output_mode)
    if time_mode == EVENT_TIME and given.time_column is None:
        raise UsageError(
            "time mode EventTime needs event time, and this stream has no event time",
            hint='add .watermark("ts", delay="5s") before key_by',
        )
    pickled = _pickled(processor)
    recorder = RecordingHandle(time_mode)
    copy = cloudpickle.loads(pickled)
    copy.init(recorder)
    copy.close()
    made = _function_class(given.kind)(
        pickled,
        variables=tuple(recorder.variables.values()),
        schema=check_schema(arrow_schema(given.output_schema, argument="output_schema"), argument="output_schema"),
        keys=given.keys,
        time_mode=time_mode,
        time_column=given.time_column,
    )
    made.dropped_states = tuple(recorder.deleted)
    made.initial = _initial(given)
    if isinstance(made, PandasProcessorFunction) and session is not None:
        chunk = int(session.conf.get(_CHUNK_CONF))
        made.chunk_rows = chunk if chunk > 0 else made.chunk_rows
        made.timezone = session.conf.get(_ZONE_CONF)
    return made


def _checked_processor(given: Any) -> StatefulProcessor:
    if isinstance(given, type) and issubclass(given, StatefulProcessor):
        raise UsageError(
            f"transform_with_state takes an object, not the class {given.__name__}", hint=f"{given.__name__}()"
        )
    if not isinstance(given, StatefulProcessor):
        raise UsageError(
            f"transform_with_state takes a processor, not {given!r}",
            hint="write a class that inherits from pyspark.sql.streaming.StatefulProcessor",
        )
    return given


def _pickled(processor: StatefulProcessor) -> bytes:
    try:
        return bytes(cloudpickle.dumps(processor))
    except Exception as error:
        raise UsageError(
            f"{type(processor).__name__} cannot be pickled: {error}",
            hint="make connections and the like in init, which runs where the processor runs",
        ) from error


def _function_class(kind: str) -> type[ProcessorFunction]:
    if kind not in ("row", "pandas"):
        raise UsageError(f"kind is {kind!r}; choose 'row' or 'pandas'")
    return ProcessorFunction if kind == "row" else PandasProcessorFunction


def _mode(given: Any, known: tuple[str, ...], argument: str, choices: str) -> str:
    mode = str(given).lower()
    if mode not in known:
        raise UsageError(f"{argument} is {given!r}; choose {choices}")
    return mode


def _check_output_mode(given: Any) -> None:
    if str(given).lower() == "complete":
        raise UsageError(
            "output_mode is Complete, which would show all results anew every time; a stream shows each result once",
            hint="use Append or Update",
        )
    _mode(given, _OUTPUT_MODES, "output_mode", "'Append' or 'Update'")


def arrow_schema(given: Any, *, argument: str) -> pa.Schema:
    """The Arrow schema that `given` means: a Spark schema, or anything else that Penstock accepts as a schema, such as
    the text `'id bigint, price double'`."""
    if isinstance(given, StructType):
        return to_arrow_schema(given)
    return as_schema(given, argument=argument)


def _initial(given: HostedProcessor) -> Any:
    frame = given.initial_state
    initial: InitialRows | LandedLater
    if frame is None:
        return None
    if isinstance(frame, pa.Table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, frame.schema) as stream:
            stream.write_table(frame)
        initial, schema = InitialRows(table=sink.getvalue().to_pybytes()), frame.schema
    elif hasattr(frame, "write") and hasattr(frame, "isStreaming"):
        landed = LandedLater(frame)
        initial, schema = landed, landed.schema
    else:
        raise UsageError(
            f"initial_state is {frame!r}, which is no DataFrame",
            hint="give a batch DataFrame of Spark, not grouped, or a pa.Table",
        )
    for key in given.keys:
        expected = given.input_schema.field(key).type
        if key not in schema.names or schema.field(key).type != expected:
            has = f"{schema.field(key).type}" if key in schema.names else "not there"
            raise UsageError(f"initial_state needs the key column {key!r} of type {expected}; the column is {has}")
    return initial


# --- what init asks for ----------------------------------------------------------------------------------------------


class RecordingHandle(StatefulProcessorHandle):
    """The handle that a processor's `init` gets on the driver: records the states that `init` asks for."""

    def __init__(self, time_mode: str) -> None:
        self.variables: dict[str, Variable] = {}
        self.deleted: dict[str, None] = {}
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """Note a value state."""
        self._note(stateName, StateKind.VALUE, schema, ttl_ms=ttlDurationMs)
        return _unusable(spark_api.ValueState, stateName)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """Note a list state."""
        self._note(stateName, StateKind.LIST, schema, ttl_ms=ttlDurationMs)
        return _unusable(spark_api.ListState, stateName)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        """Note a map state."""
        self._note(stateName, StateKind.MAP, valueSchema, ttl_ms=ttlDurationMs, map_key=userKeySchema)
        return _unusable(spark_api.MapState, stateName)

    def _note(self, name: str, kind: StateKind, schema: Any, *, ttl_ms: int | None = None, map_key: Any = None) -> None:
        refuse_deletion(name, self.deleted, initialised=False)
        what = f"the schema of state {name!r}"
        if ttl_ms is not None and self._time_mode != PROCESSING_TIME:
            raise UsageError(
                f"state {name!r} has a time to live, which needs the time mode ProcessingTime",
                hint='give time_mode="ProcessingTime", or leave ttlDurationMs out',
            )
        if ttl_ms is not None and (not isinstance(ttl_ms, int) or ttl_ms <= 0):
            raise UsageError(
                f"the time to live of state {name!r} is {ttl_ms!r}", hint="give a whole number of milliseconds above 0"
            )
        variable = Variable(
            name=name,
            kind=kind,
            value=arrow_schema(schema, argument=what),
            map_key=None if map_key is None else arrow_schema(map_key, argument=f"the key schema of state {name!r}"),
            ttl_ms=ttl_ms,
        )
        if self.variables.setdefault(name, variable) != variable:
            raise UsageError(
                f"init asks for state {name!r} twice, with different declarations",
                hint="give one of the two states another name",
            )

    def deleteIfExists(self, stateName: str) -> None:
        """Note that a state of an earlier version is not to be kept."""
        refuse_deletion(stateName, self.variables, initialised=False)
        self.deleted[stateName] = None

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        """Raise `UsageError`: there is no key."""
        refuse_timers_in_init("registerTimer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        """Raise `UsageError`: there is no key."""
        refuse_timers_in_init("deleteTimer")

    def listTimers(self) -> NoReturn:
        """Raise `UsageError`: there is no key."""
        refuse_timers_in_init("listTimers")


def _unusable(kind: type, name: str) -> Any:
    """An object of one of PySpark's state classes that `init` can keep, and whose methods raise `UsageError`."""

    def refuse(*_: Any) -> NoReturn:
        raise UsageError(
            f"state {name!r} was used in init, where there is no key", hint="use the state in handleInputRows"
        )

    methods: dict[str, Callable[..., Any]] = {method: refuse for method in vars(kind) if not method.startswith("_")}
    return type(kind.__name__, (kind,), {"__init__": lambda _: None, **methods})()
