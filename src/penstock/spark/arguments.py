"""What a program gave, looked at before anything is done with it: arguments of the wrong kind, DataFrames that are none
or have columns that streams cannot have, functions that cannot travel."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

import cloudpickle
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkTypeError

from penstock.api.checkpointing import Checkpointing
from penstock.api.grouped import GroupedFunction
from penstock.api.high_availability import HighAvailability
from penstock.api.steps import KeyedProcessStep, ReadStep, WriteStep
from penstock.core.errors import UsageError
from penstock.plan.graph import Plan
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
    "high_availability": ((*get_args(HighAvailability), NoneType), "give ps.ha_files(...) or ps.zookeeper(...)"),
}
"""What each argument of an environment may be, and what to give instead of anything else."""


def argument_problems(given: Mapping[str, Any]) -> list[str]:
    """What is of the wrong kind among the arguments of an environment, one line each, with what to change."""
    return [
        f"{name} is {given[name]!r}; {remedy}"
        for name, (kinds, remedy) in _KINDS.items()
        if not isinstance(given[name], kinds) or isinstance(given[name], bool)
    ]


_HOW_TO_MAKE = {
    "from_dataframe": "spark.createDataFrame(...) makes one of rows, or of a pandas DataFrame",
    "from_stream": "spark.readStream makes one; for rows that are there already use from_dataframe, with what "
    "spark.createDataFrame(...) makes of them",
}


def check_frame(frame: Any, *, method: str) -> None:
    """Refuse what is not a DataFrame of Spark's."""
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        kind = f"{type(frame).__module__}.{type(frame).__qualname__}".removeprefix("builtins.")
        raise UsageError(
            f"{method} takes a DataFrame of Spark's, this is a {kind}",
            hint=_HOW_TO_MAKE[method],
        )


def check_appends(frame: Any) -> None:
    """Refuse a streaming DataFrame of which Spark cannot say what is new with each micro-batch, as its query would.
    For classic sessions: a server of Spark Connect is not asked, and says so when the query starts."""
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
            hint="aggregate behind withWatermark, or leave it to the job, by key_by and window or process",
        ) from error
    except Py4JError:
        # Another version of Spark, with another way to look: the query will tell.
        log.debug("the output mode of a stream could not be looked at", exc_info=True)


def frame_schema(frame: Any) -> pa.Schema:
    """The columns of a DataFrame as Arrow types; times are UTC. Raises `UsageError` for types that streams lack."""
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
                hint="convert it to a text, a number or a struct by Spark SQL first",
            )
    return to_arrow_schema(frame.schema)


def _has_variant(kind: Any) -> bool:
    """Whether a type of Spark's has a variant in it: Arrow takes one for a struct of bytes that nobody could use."""
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


def check_functions_travel(plan: Plan) -> None:
    """Refuse a step whose function cannot be sent to the workers. Sources, sinks and processors have parts that stay on
    the driver, and look for themselves."""
    for operator in (operator for vertex in plan.vertices for operator in vertex.operators):
        step = operator.step
        if isinstance(step, ReadStep | WriteStep):
            continue
        if isinstance(step, KeyedProcessStep) and isinstance(step.function, GroupedFunction):
            continue
        try:
            cloudpickle.dumps(step)
        except Exception as error:
            raise UsageError(
                f"step {operator.name!r} cannot be sent to the workers: {error}",
                hint="what its function uses from outside goes with it: locks, connections, files and sessions cannot. "
                "Open them in `open` of a ps.ProcessFunction or ps.KeyedFunction",
            ) from error
