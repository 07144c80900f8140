"""Keys as Python values: made from columns and turned back into columns; and the order in which timers of keys fire."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.sql.python_values import named_values

NAN = math.nan
"""The only NaN object among keys. Two NaN objects are never equal, so all NaN keys must be the same object."""


def keys_of(columns: Mapping[str, Any]) -> list[Any]:
    """The keys of rows, from their key columns by name: values, or tuples of values if there are several columns."""
    values = [key_values(name, column) for name, column in columns.items()]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def key_values(name: str, column: Any) -> list[Any]:
    """The values of the key column `name`, such that equal keys are equal values."""
    values = named_values(name, column)
    if not pt.is_floating(column.type):
        return values
    # Adding zero turns -0.0 into 0.0.
    return [value if value is None else NAN if value != value else value + 0.0 for value in values]


def key_columns(keys: Sequence[Any], schema: pa.Schema) -> list[Any]:
    """The key columns of rows with these keys."""
    if len(schema) == 1:
        return [pa.array(keys, schema.field(0).type)]
    values = zip(*keys, strict=True) if keys else [() for _ in schema]
    return [pa.array(list(column), field.type) for column, field in zip(values, schema, strict=True)]


def ranking(schema: pa.Schema) -> Callable[[Any], Any]:
    """The sort key for keys: null first, then ascending, NaN last; column by column."""
    if len(schema) == 1:
        return _rank
    return lambda key: tuple(map(_rank, key))


def _rank(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (2,) if value is NAN else (1, value)
