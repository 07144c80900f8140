"""Spark's types as Arrow types; times are UTC.

From 4.2 on, PySpark must be told the time zone. PySpark 4.1 always takes UTC, and has no argument for the time zone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types


def zone_for(function: Callable[..., Any]) -> dict[str, Any]:
    """The argument that tells a function of PySpark that times are UTC; no argument if the function has none."""
    return {"timezone": "UTC"} if "timezone" in inspect.signature(function).parameters else {}


def to_arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type of Spark. Raises `PySparkTypeError` if there is no such Arrow type."""
    return types.to_arrow_type(kind, **zone_for(types.to_arrow_type))


def to_arrow_schema(struct: Any) -> pa.Schema:
    """The Arrow schema of a struct of Spark. Raises `PySparkTypeError` if a field has no Arrow type."""
    return types.to_arrow_schema(struct, **zone_for(types.to_arrow_schema))
