"""Spark's types as Arrow types; times are UTC.

From 4.2 on PySpark must be told the zone. 4.1 takes UTC by itself, and does not know the argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types


def zone_for(function: Callable[..., Any]) -> dict[str, Any]:
    """What tells this function of PySpark's, of whatever version, that times are UTC."""
    return {"timezone": "UTC"} if "timezone" in inspect.signature(function).parameters else {}


def to_arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type of Spark's. Raises `PySparkTypeError` if there is none."""
    return types.to_arrow_type(kind, **zone_for(types.to_arrow_type))


def to_arrow_schema(struct: Any) -> pa.Schema:
    """The Arrow schema of a struct of Spark's. Raises `PySparkTypeError` if there is none."""
    return types.to_arrow_schema(struct, **zone_for(types.to_arrow_schema))
