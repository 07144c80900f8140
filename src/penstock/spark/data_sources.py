"""PySpark's Python Data Sources as sources and sinks: `ps.data_source` and `ps.data_sink`.

This module checks the class, the options and the schema, when the program is built. A data source is read by
`penstock.spark.data_source_planning` and `penstock.spark.data_source_reading`, and written by
`penstock.spark.data_source_writing`.
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
    """A source that reads a PySpark Python Data Source. The class of the data source needs no change.

    The offsets of the data source are part of the job's state: ranges that have been planned are in the checkpoint, and
    are read again after a failure. See docs/data-sources.md for what the class can rely on.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> from pyspark.sql.datasource import DataSource, DataSourceReader
    >>> class Squares(DataSource):
    ...     def schema(self):
    ...         return "n bigint, square bigint"
    ...     def reader(self, schema):
    ...         return SquaresReader(int(self.options["count"]))
    >>> class SquaresReader(DataSourceReader):
    ...     def __init__(self, count):
    ...         self.count = count
    ...     def read(self, partition):
    ...         return ((n, n * n) for n in range(self.count))
    >>> source = ps.data_source(Squares, options={"count": 3}, mode="batch")
    >>> run(lambda env: env.read(source).where("n > 0").write(ps.collect()))
    [{'n': 1, 'square': 1}, {'n': 2, 'square': 4}]

    Args:
        source: the class, a subclass of `pyspark.sql.datasource.DataSource`.
        options: the options that `.option(...)` would set. Upper and lower case make no difference in their names.
        schema: the schema of the records, if it differs from the schema that the class gives.
        mode: `stream` reads for ever, by `streamReader` or `simpleStreamReader`; `available-now` reads the data that is
            there when the job starts, and ends; `batch` reads, once, the rows that `reader` gives.
        poll: how long to wait before a stream that had no more data is asked for data again.

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
    """A sink that writes by the `streamWriter` of a PySpark Python Data Source. The class of the data source needs no
    change.

    `write` is called once per checkpoint in every subtask that has records. `commit` is called once per checkpoint, on
    the driver, when the checkpoint is complete. See docs/data-sources.md for what the class can rely on.

    >>> from pathlib import Path
    >>> import penstock as ps
    >>> from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
    >>> class BidLists(DataSource):
    ...     def streamWriter(self, schema, overwrite):
    ...         return BidListWriter(self.options["folder"])
    >>> class BidListWriter(DataSourceStreamWriter):
    ...     def __init__(self, folder):
    ...         self.folder = folder
    ...     def write(self, rows):
    ...         message = WriterCommitMessage()
    ...         message.items = [row.item for row in rows]
    ...         return message
    ...     def commit(self, messages, batchId):
    ...         items = [item for message in messages if message for item in message.items]
    ...         Path(self.folder, f"{batchId}.txt").write_text(" ".join(items))
    >>> sink = ps.data_sink(BidLists, options={"folder": "lists"})  # for stream.write(sink)
    >>> sink.name
    'BidLists'

    Args:
        sink: the class, a subclass of `pyspark.sql.datasource.DataSource`.
        options: the options that `.option(...)` would set. Upper and lower case make no difference in their names.

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
    """The value of an option as the text that Spark would hand to the data source."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _struct(source: DataSource, given: Any) -> StructType:
    name = source.name()
    if given is None:
        try:
            given = source.schema()
        except PySparkNotImplementedError:
            raise UsageError(
                f"data source {name!r} does not give its schema", hint="give data_source(..., schema=...)"
            ) from None
    argument = f"the schema of data source {name!r}"
    struct = given if isinstance(given, StructType) else _parsed(given, argument)
    check_schema(_arrow(struct, argument), argument=argument)
    return struct


def _parsed(given: Any, argument: str) -> StructType:
    """The Spark schema of a text, or of anything else that Penstock accepts as a schema."""
    try:
        return from_arrow_schema(as_schema(given, argument=argument))
    except UsageError as refused:
        if not isinstance(given, str):
            raise
        try:
            # Spark's own parser knows more types. It needs a session, a classic session or one of Spark Connect.
            found = StructType.fromDDL(given)
        except PySparkException:
            # Penstock's own error says the same, and at which place in the text.
            raise refused from None
        if not isinstance(found, StructType):
            raise
        return found


def _arrow(struct: StructType, argument: str) -> pa.Schema:
    try:
        return to_arrow_schema(struct)
    except Exception as error:
        raise UsageError(f"{argument} has a column of a type that streams do not have: {error}") from error
