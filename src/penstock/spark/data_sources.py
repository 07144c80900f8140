"""PySpark's Python Data Sources as sources and sinks: `ps.data_source` and `ps.data_sink`.

What is wrong with a class, its options or its schema is said here, when the program is written. How a class is read is
in `penstock.spark.data_source_reading`, how it is written in `penstock.spark.data_source_writing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors import PySparkException, PySparkNotImplementedError
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.api.connector import Sink, Source
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError
from penstock.spark.arrow_types import to_arrow_schema
from penstock.spark.data_source_calls import GivenSource
from penstock.spark.data_source_planning import batch_input, stream_input
from penstock.spark.data_source_writing import DataSourceSink
from penstock.sql.schemas import as_schema, check_schema

_MODES = ("stream", "available-now", "batch")


def data_source(
    source: type[Any],
    *,
    options: Mapping[str, Any] | None = None,
    schema: Any = None,
    mode: Literal["stream", "available-now", "batch"] = "stream",
    poll: Duration = "100ms",
) -> Source:
    """A source that reads a PySpark Python Data Source, as it is written.

    Its offsets are the job's state: what was planned is in the checkpoint, and is read again after a failure. See
    docs/data-sources.md for what the class can rely on.

    Args:
        source: the class, a subclass of `pyspark.sql.datasource.DataSource`.
        options: what `.option(...)` would set; names in any case.
        schema: of the records, if it is not the one that the class says.
        mode: `stream` reads on for ever, by `streamReader` or `simpleStreamReader`; `available-now` ends with what is
            there when the job starts; `batch` reads what `reader` gives, once.
        poll: how often a stream is asked for more when there was nothing.

    """
    if mode not in _MODES:
        raise UsageError(f"mode is {mode!r}", hint=f"choose one of {', '.join(_MODES)}")
    poll_ms = duration_ms(poll, argument="poll")
    made = _made(source, options, argument="data_source")
    struct = _struct(made, schema)
    given = GivenSource(source=made, struct=struct)
    if mode == "batch":
        return batch_input(given)
    return stream_input(given, available_now=mode == "available-now", poll_ms=poll_ms)


def data_sink(sink: type[Any], *, options: Mapping[str, Any] | None = None) -> Sink:
    """A sink that writes by the `streamWriter` of a PySpark Python Data Source, as it is written.

    `write` is called once per checkpoint in every subtask that has records, `commit` once per checkpoint on the driver
    when it is complete. See docs/data-sources.md for what the class can rely on.

    Args:
        sink: the class, a subclass of `pyspark.sql.datasource.DataSource`.
        options: what `.option(...)` would set; names in any case.

    """
    return DataSourceSink(source=_made(sink, options, argument="data_sink"))


def _made(source: Any, options: Mapping[str, Any] | None, *, argument: str) -> DataSource:
    if isinstance(source, DataSource):
        raise UsageError(
            f"{argument} takes a class, not an object of {type(source).__name__}",
            hint=f"{argument}({type(source).__name__}, options={{...}})",
        )
    if not isinstance(source, type) or not issubclass(source, DataSource):
        raise UsageError(
            f"{argument} takes a Python Data Source, not {source!r}",
            hint="give a class that inherits from pyspark.sql.datasource.DataSource",
        )
    texts = {str(name): _text(value) for name, value in (options or {}).items() if value is not None}
    return source(options=CaseInsensitiveDict(texts))


def _text(value: Any) -> str:
    """An option as Spark would hand it over."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _struct(source: DataSource, given: Any) -> StructType:
    name = source.name()
    if given is None:
        try:
            given = source.schema()
        except PySparkNotImplementedError:
            raise UsageError(
                f"data source {name!r} does not say what its schema is", hint="give data_source a schema="
            ) from None
    argument = f"the schema of data source {name!r}"
    struct = given if isinstance(given, StructType) else _parsed(given, argument)
    check_schema(_arrow(struct, argument), argument=argument)
    return struct


def _parsed(given: Any, argument: str) -> StructType:
    """Spark's schema of a text, or of whatever else Penstock takes for a schema."""
    try:
        return from_arrow_schema(as_schema(given, argument=argument))
    except UsageError as refused:
        if not isinstance(given, str):
            raise
        try:
            # Spark's own parser knows more types, and is there where a session is, of whichever kind.
            found = StructType.fromDDL(given)
        except PySparkException:
            # Ours says the same, and where.
            raise refused from None
        if not isinstance(found, StructType):
            raise
        return found


def _arrow(struct: StructType, argument: str) -> pa.Schema:
    try:
        return to_arrow_schema(struct)
    except Exception as error:
        raise UsageError(f"{argument} has a column that cannot be: {error}") from error
