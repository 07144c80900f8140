"""Checks of what a program gives, before it is used: arguments of the wrong type, objects that are no DataFrames,
DataFrames with columns that streams cannot have."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkTypeError

from penstock.api.checkpointing import Checkpointing
from penstock.api.high_availability import HighAvailability
from penstock.api.web import Web
from penstock.core.errors import UsageError
from penstock.settings import NetworkSettings, Restart, SlotSettings

log = logging.getLogger(__name__)

_NUMBER = "give a whole number"
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "parallelism": ((int, NoneType), _NUMBER),
    "max_parallelism": ((int, NoneType), _NUMBER),
    "spare_slots": ((int,), _NUMBER),
    "source_batch_rows": ((int,), _NUMBER),
    "checkpointing": ((Checkpointing, NoneType), "give ps.Checkpointing(directory=...)"),
    "restart": (
        (*get_args(Restart), NoneType),
        "give ps.no_restart(), ps.fixed_delay(...), ps.exponential_delay(...) or ps.failure_rate(...)",
    ),
    "network": ((NetworkSettings, NoneType), "give ps.NetworkSettings(...)"),
    "slots": ((SlotSettings, NoneType), "give ps.SlotSettings(...)"),
    "landing": ((str, os.PathLike, NoneType), "give the path of a folder"),
    "web": ((bool, Web, NoneType), "give True, False, or ps.Web(...)"),
    "high_availability": ((*get_args(HighAvailability), NoneType), "give ps.ha_files(...) or ps.zookeeper(...)"),
}
"""For each argument of an environment: the types that it may have, and what to give instead of any other type."""


def argument_problems(given: Mapping[str, Any]) -> list[str]:
    """A line for each argument of an environment that has the wrong type. The line says what to give instead."""
    return [
        f"{name} is {given[name]!r}; {remedy}"
        for name, (kinds, remedy) in _KINDS.items()
        if not isinstance(given[name], kinds) or (isinstance(given[name], bool) and bool not in kinds)
    ]


_HOW_TO_MAKE = {
    "from_dataframe": "spark.createDataFrame(...) makes a DataFrame of rows, or of a pandas DataFrame",
    "from_stream": "spark.readStream makes a streaming DataFrame; for rows that are there already use "
    "from_dataframe(spark.createDataFrame(...))",
}


def check_frame(frame: Any, *, method: str) -> None:
    """Raise `UsageError` if `frame` is not a DataFrame of Spark."""
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}".removeprefix("builtins.")
        raise UsageError(
            f"{method} takes a DataFrame of Spark, and got a {kind}",
            hint=_HOW_TO_MAKE[method],
        )


def check_appends(frame: Any) -> None:
    """Raise `UsageError` if Spark cannot run a query of this streaming DataFrame in append mode. Only for classic
    sessions: a Spark Connect server refuses such a DataFrame when the query starts."""
    session = frame.sparkSession
    if session.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true") != "true":
        return
    try:
        spark = session._jvm.org.apache.spark.sql  # noqa: SLF001
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, spark.streaming.OutputMode.Append())
    except AnalysisException as error:
        raise UsageError(
            f"Spark cannot run this streaming DataFrame in append mode: {str(error).splitlines()[0].rstrip(';')}",
            hint="aggregate behind withWatermark, or let the job aggregate, by key_by and window or process",
        ) from error
    except Py4JError:
        # A version of Spark that has no such checker: if append mode is not possible, the query says so when it starts.
        log.debug("whether Spark can run a stream in append mode could not be checked", exc_info=True)


def frame_schema(frame: Any) -> pa.Schema:
    """The columns of a DataFrame as Arrow types; times are UTC. Raises `UsageError` for a type that streams do not
    have."""
    from penstock.spark.arrow_types import to_arrow_schema, to_arrow_type

    for field in frame.schema:
        try:
            to_arrow_type(field.dataType)
            refused = _has_variant(field.dataType)
        except PySparkTypeError:
            refused = True
        if refused:
            raise UsageError(
                f"column {field.name!r} is of Spark's type {field.dataType.simpleString()}, which streams do not have",
                hint="convert the column to a text, a number or a struct by Spark SQL first",
            )
    return to_arrow_schema(frame.schema)


def _has_variant(kind: Any) -> bool:
    """Whether a type of Spark has a variant in it. PySpark makes an Arrow struct of bytes of a variant, and no step
    could use those bytes."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    match kind:
        case VariantType():
            return True
        case StructType():
            return any(_has_variant(field.dataType) for field in kind)
        case ArrayType():
            return _has_variant(kind.elementType)
        case MapType():
            return _has_variant(kind.keyType) or _has_variant(kind.valueType)
        case _:
            return False
