"""Typed values of SQL text: what a part of the text computes, how values get a common type, and how values are cast.

The types are Spark's: a column of an unsigned or half-precision type is read as the next wider type that Spark has. The
rules are those of ANSI mode, with three exceptions that keep programs predictable: a text is never turned into a number
unasked; a number with a decimal point is a double (Spark reads a decimal); doubles and decimals are not turned into
text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

import polars as pl

from penstock.sql.decimals import ToDecimal
from penstock.sql.kernels import Checked

BOOLEAN = pl.Boolean()
INT = pl.Int32()
BIGINT = pl.Int64()
DOUBLE = pl.Float64()
STRING = pl.String()
DATE = pl.Date()
TIMESTAMP = pl.Datetime("us", "UTC")
TIMESTAMP_NTZ = pl.Datetime("us")
INTERVAL = pl.Duration("us")
NULL = pl.Null()

_INTEGERS: tuple[pl.DataType, ...] = (pl.Int8(), pl.Int16(), INT, BIGINT)
_FLOATS: tuple[pl.DataType, ...] = (pl.Float32(), DOUBLE)
_READ_AS: dict[pl.DataType, pl.DataType] = {
    pl.UInt8(): pl.Int16(),
    pl.UInt16(): INT,
    pl.UInt32(): BIGINT,
    pl.Float16(): pl.Float32(),
}
_NAMES: dict[pl.DataType, str] = {
    BOOLEAN: "boolean",
    pl.Int8(): "tinyint",
    pl.Int16(): "smallint",
    INT: "int",
    BIGINT: "bigint",
    pl.Float32(): "float",
    DOUBLE: "double",
    STRING: "string",
    pl.Binary(): "binary",
    DATE: "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    INTERVAL: "interval",
    NULL: "void",
}
_TRUE = ("t", "true", "y", "yes", "1")
_FALSE = ("f", "false", "n", "no", "0")
_MICROSECONDS = 1_000_000


class NotPossible(Exception):
    """Two types do not go together, or a value cannot be cast to a type. The translator makes a `UsageError` of this
    error."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Value:
    """What a part of the text computes."""

    expr: pl.Expr
    dtype: pl.DataType
    text: str | None = None
    """The characters of a string literal, which can still become a date or a timestamp; None for any other value."""

    @property
    def is_integer(self) -> bool:
        """Whether the value is one of Spark's whole numbers."""
        return self.dtype in _INTEGERS

    @property
    def is_float(self) -> bool:
        """Whether the value is float or double."""
        return self.dtype in _FLOATS

    @property
    def is_numeric(self) -> bool:
        """Whether arithmetic with the value is possible."""
        return self.is_integer or self.is_float


def column_value(expr: pl.Expr, dtype: pl.DataType) -> Value:
    """The value of a column, in the nearest type that Spark has."""
    if dtype in _READ_AS:
        return Value(expr.cast(_READ_AS[dtype]), _READ_AS[dtype])
    if isinstance(dtype, pl.Datetime):
        wanted = TIMESTAMP_NTZ if dtype.time_zone is None else TIMESTAMP
        return Value(expr if dtype == wanted else expr.cast(wanted), wanted)
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return Value(expr.cast(STRING), STRING)
    return Value(expr, dtype)


def sql_name(dtype: pl.DataType) -> str:
    """What Spark calls a type."""
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision}, {dtype.scale})"
    return _NAMES.get(dtype, str(dtype).lower())


def common_type(values: list[Value]) -> pl.DataType:
    """The type that all values can be brought to without loss of meaning. Raises `NotPossible`."""
    found: pl.DataType = NULL
    for value in values:
        if value.text is None:
            found = _wider(found, value.dtype)
    for value in values:
        # A string literal beside a date or a timestamp is read as a date or a timestamp.
        if value.text is not None and found not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
            found = _wider(found, STRING)
    return found


def _wider(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=_INTEGERS.index)
    if one in (*_INTEGERS, *_FLOATS) and other in (*_INTEGERS, *_FLOATS):
        return DOUBLE
    times = (DATE, TIMESTAMP_NTZ, TIMESTAMP)
    if one in times and other in times:
        return max(one, other, key=times.index)
    raise NotPossible(
        f"{sql_name(one)} and {sql_name(other)} do not go together", hint="use CAST to bring both to one type"
    )


def widened(value: Value, dtype: pl.DataType) -> Value:
    """The value in a type that `common_type` found."""
    return value if value.dtype == dtype else cast(value, dtype, reached=None, lenient=False)


def guarded(expr: pl.Expr, reached: pl.Expr | None) -> pl.Expr:
    """The expression, but null in rows for which Spark would not compute the expression: it cannot fail in such
    rows."""
    return expr if reached is None else pl.when(reached).then(expr)


def cast(value: Value, dtype: pl.DataType, *, reached: pl.Expr | None, lenient: bool) -> Value:
    """The value turned into another type, as CAST does; with `lenient` as TRY_CAST does. Raises `NotPossible`."""
    if value.dtype == dtype:
        return value
    if value.dtype == NULL:
        return Value(pl.lit(None, dtype), dtype)
    changed = _cast_expr(value, dtype, guarded(value.expr, reached), lenient=lenient)
    if changed is None:
        raise NotPossible(
            f"{sql_name(value.dtype)} cannot be cast to {sql_name(dtype)}",
            hint="write a Polars expression instead, or use map_batches",
        )
    return Value(changed, dtype)


def _cast_expr(value: Value, dtype: pl.DataType, expr: pl.Expr, *, lenient: bool) -> pl.Expr | None:
    if isinstance(dtype, pl.Decimal):
        return _to_decimal(value, dtype, expr, lenient=lenient)
    if value.dtype == STRING:
        return _from_string(value, dtype, expr, lenient=lenient)
    if dtype == STRING:
        return _to_string(value.dtype, expr)
    if value.dtype in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return _from_time(value.dtype, dtype, expr, lenient=lenient)
    numeric = value.is_numeric or isinstance(value.dtype, pl.Decimal) or value.dtype == pl.UInt64()
    if not numeric and value.dtype != BOOLEAN:
        return None
    if dtype == BOOLEAN:
        return expr != 0
    if dtype in _INTEGERS or dtype in _FLOATS:
        return expr.cast(dtype, strict=not lenient)
    if dtype == TIMESTAMP and value.is_integer:
        return _micros(expr.cast(BIGINT), "cast to timestamp").cast(TIMESTAMP)
    if dtype == TIMESTAMP and value.is_float:
        return (expr.cast(DOUBLE) * _MICROSECONDS).cast(BIGINT, strict=not lenient).cast(TIMESTAMP)
    return None


def _to_decimal(value: Value, dtype: pl.Decimal, expr: pl.Expr, *, lenient: bool) -> pl.Expr | None:
    if value.dtype == BOOLEAN:
        expr = expr.cast(pl.Int8)
    elif value.is_float:
        expr = expr.cast(DOUBLE)
    elif not (value.is_integer or value.dtype in (STRING, pl.UInt64()) or isinstance(value.dtype, pl.Decimal)):
        return None
    kernel = ToDecimal(dtype.precision, dtype.scale, lenient, f"a cast to {sql_name(dtype)}")
    return pl.map_batches([expr], kernel, return_dtype=dtype, is_elementwise=True)


def _micros(seconds: pl.Expr, text: str) -> pl.Expr:
    factor = pl.lit(_MICROSECONDS, BIGINT)
    kernel = Checked("multiply_checked", text)
    return pl.map_batches([seconds, factor], kernel, return_dtype=BIGINT, is_elementwise=True)


def _from_string(value: Value, dtype: pl.DataType, expr: pl.Expr, *, lenient: bool) -> pl.Expr | None:
    if dtype in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        if value.text is None:
            return None
        return time_literal(value.text, dtype)
    stripped = expr.str.strip_chars()
    if dtype in _INTEGERS or dtype in _FLOATS:
        return stripped.cast(dtype, strict=not lenient)
    if dtype == BOOLEAN:
        meaning = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
        lowered = stripped.str.to_lowercase()
        if lenient:
            return lowered.replace_strict(meaning, default=None, return_dtype=BOOLEAN)
        return lowered.replace_strict(meaning, return_dtype=BOOLEAN)
    return None


def _to_string(source: pl.DataType, expr: pl.Expr) -> pl.Expr | None:
    if source in _INTEGERS or source == BOOLEAN:
        return expr.cast(STRING)
    if source == DATE:
        return expr.dt.to_string("%Y-%m-%d")
    if source in (TIMESTAMP, TIMESTAMP_NTZ):
        with_fraction = expr.dt.to_string("%Y-%m-%d %H:%M:%S%.6f")
        return with_fraction.str.strip_chars_end("0").str.strip_suffix(".")
    return None


def _from_time(source: pl.DataType, dtype: pl.DataType, expr: pl.Expr, *, lenient: bool) -> pl.Expr | None:
    if dtype == DATE:
        return expr.dt.date()
    if dtype in (TIMESTAMP, TIMESTAMP_NTZ):
        zone = "UTC" if dtype == TIMESTAMP else None
        return (
            expr.cast(TIMESTAMP_NTZ).dt.replace_time_zone(zone) if source == DATE else expr.dt.replace_time_zone(zone)
        )
    if source == TIMESTAMP and dtype in _INTEGERS:
        return (expr.dt.timestamp("us") // _MICROSECONDS).cast(dtype, strict=not lenient)
    if source == TIMESTAMP and dtype in _FLOATS:
        return (expr.dt.timestamp("us") / float(_MICROSECONDS)).cast(dtype)
    return None


def time_literal(text: str, dtype: pl.DataType) -> pl.Expr:
    """The date or timestamp that a literal in ISO form means; UTC unless the literal has an offset. Raises
    `NotPossible`."""
    try:
        if dtype == DATE:
            return pl.lit(date.fromisoformat(text.strip()), DATE)
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        example = "2024-02-29" if dtype == DATE else "2024-02-29 13:14:15.123456"
        raise NotPossible(f"{text!r} is no {sql_name(dtype)}", hint=f"write a literal such as {example!r}") from None
    if dtype == TIMESTAMP_NTZ:
        return pl.lit(moment.replace(tzinfo=None), TIMESTAMP_NTZ)
    in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return pl.lit(in_utc, TIMESTAMP)
