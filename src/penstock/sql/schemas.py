"""Schemas: as users give them, and how Arrow's types and Polars' types stand for each other.

A schema argument takes a `pa.Schema`, a mapping from name to type (a Python type, a `pa.DataType` or the name of a
Spark type), or a text such as "auction bigint, price double". Streams carry Arrow schemas; a column that an expression
computes gets the plain Arrow type of its Polars type (`string`, not `large_string`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError
from penstock.sql.ddl import TIMESTAMP, parse_columns, parse_type

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl

TypeLike = type | pa.DataType | str
"""What every type argument takes."""

SchemaLike = pa.Schema | Mapping[str, TypeLike] | str
"""What every schema argument takes."""

_PYTHON_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: TIMESTAMP,
    datetime.date: pa.date32(),
}


def as_schema(given: SchemaLike, *, argument: str) -> pa.Schema:
    """The Arrow schema that `given` means. Raises `UsageError` naming `argument`."""
    if isinstance(given, pa.Schema):
        schema = given
    elif isinstance(given, str):
        schema = parse_columns(given, argument=argument)
    elif isinstance(given, Mapping):
        schema = pa.schema([_field(name, kind, argument) for name, kind in given.items()])
    else:
        raise UsageError(
            f"{argument} is {given!r}, which is no schema",
            hint="give a pa.Schema, a dict of name and type, or a text such as 'auction bigint, price double'",
        )
    return check_schema(schema, argument=argument)


def check_schema(schema: pa.Schema, *, argument: str) -> pa.Schema:
    """The schema itself. Raises `UsageError` if the schema is empty or names a column twice."""
    if not schema.names:
        raise UsageError(f"{argument} has no columns", hint="records need at least one column")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise UsageError(f"{argument} has {schema.names.count(name)} columns named {name!r}", hint="rename one")
    return schema


def as_type(given: TypeLike, *, argument: str) -> pa.DataType:
    """The Arrow type that `given` means. Raises `UsageError` naming `argument`."""
    found = _type(given, argument)
    if found is None:
        raise UsageError(f"{argument} is {given!r}, which is no type", hint=_type_hint())
    return _spelled_out(found)


def _spelled_out(kind: pa.DataType) -> pa.DataType:
    """The type for the same values without dictionaries. No snapshot has dictionaries, since a few bytes of a
    dictionary can stand for very many bytes of values."""
    if pa.types.is_dictionary(kind):
        return _spelled_out(kind.value_type)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_spelled_out(kind.value_type)))
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_spelled_out(field.type)) for field in fields])
    return kind


def _type(given: object, argument: str) -> pa.DataType | None:
    if isinstance(given, pa.DataType):
        return given
    if isinstance(given, str):
        return parse_type(given, argument=argument)
    return _PYTHON_TYPES.get(given) if isinstance(given, type) else None


def _type_hint() -> str:
    known = ", ".join(python.__name__ for python in _PYTHON_TYPES)
    return f"give one of {known}, a pa.DataType, or a text such as 'bigint' or 'decimal(10, 2)'"


def _field(name: object, kind: object, argument: str) -> pa.Field[pa.DataType]:
    if not isinstance(name, str):
        raise UsageError(f"{argument} has a column named {name!r}; names are texts")
    found = _type(kind, f"the type of column {name!r} in {argument}")
    if found is None:
        raise UsageError(f"{argument} has {kind!r} as the type of column {name!r}", hint=_type_hint())
    return pa.field(name, found)


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """A frame without rows, with the columns of `schema` as Polars sees them."""
    import polars as pl

    frame = pl.from_arrow(schema.empty_table())
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"a table became {type(frame).__name__}")
    return frame


def arrow_type(dtype: pl.DataType) -> pa.DataType:
    """The plain Arrow type for columns of a Polars type."""
    import polars as pl

    return _plain(pl.Series([], dtype=dtype).to_arrow().type)


def element_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the elements of an array; None if `kind` is no type of arrays. A map is no array: in Spark, `explode`
    makes two columns of a map."""
    return kind.value_type if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType) else None


def polars_type(kind: pa.DataType) -> pl.DataType:
    """How Polars sees columns of an Arrow type."""
    return empty_frame(pa.schema([pa.field("column", kind)])).schema["column"]


def _plain(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.DictionaryType):
        return _plain(kind.value_type)
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(_plain(kind.value_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind


def common_schema(schemas: Sequence[pa.Schema], *, argument: str) -> pa.Schema:
    """The schema for the records of all these schemas: the columns of the first schema. A column may be null if the
    column may be null in any of the schemas. Raises `UsageError`, which names the differences."""
    first = schemas[0]
    for position, other in enumerate(schemas[1:], start=2):
        differences = _differences(first, other)
        if differences:
            raise UsageError(
                f"{argument} needs streams with the same columns; stream {position} differs from the first: "
                f"{'; '.join(differences)}",
                hint="give all streams the same columns with select(...) before",
            )
    return pa.schema(
        [
            pa.field(field.name, field.type, nullable=any(schema.field(i).nullable for schema in schemas))
            for i, field in enumerate(first)
        ]
    )


def _differences(first: pa.Schema, other: pa.Schema) -> list[str]:
    found = [f"it has no column {name!r}" for name in first.names if name not in other.names]
    found += [f"it also has a column {name!r}" for name in other.names if name not in first.names]
    found += [
        f"column {field.name!r} is {other.field(field.name).type} instead of {field.type}"
        for field in first
        if field.name in other.names and other.field(field.name).type != field.type
    ]
    if not found and first.names != other.names:
        found.append(f"its columns come in the order {', '.join(other.names)} instead of {', '.join(first.names)}")
    return found


def unknown_column(name: str, columns: Sequence[str], *, argument: str) -> UsageError:
    """The error for a column that does not exist: lists the columns that exist, and guesses which column was meant."""
    near = get_close_matches(name, columns, n=1, cutoff=0.5) or [c for c in columns if c.lower() == name.lower()]
    return UsageError(
        f"{argument}: there is no column {name!r}; there are {', '.join(columns)}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )


def can_be_key(kind: pa.DataType) -> bool:
    """Whether values of a type can be compared and hashed as keys."""
    return (
        pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_decimal128(kind)
        or pt.is_date(kind)
        or pt.is_time(kind)
        or pt.is_timestamp(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
    )


def as_timestamp(column: str, kind: pa.DataType) -> str:
    """The argument of `with_columns` that makes a column a timestamp of microseconds, as a user would write it."""
    if pt.is_integer(kind):
        return f'{column}="timestamp_millis({column})"'
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return f'{column}="CAST({column} AS TIMESTAMP)"'
    return f'{column}=pl.col("{column}").str.to_datetime("%Y-%m-%dT%H:%M:%S", time_zone="UTC")'
