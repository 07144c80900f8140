"""Values between Arrow and Python: whole columns, and single values on their way into typed state.

A typed state returns the same values as a column of its type would: an integer that was set where a double is declared
comes back as a float, before and after a restore. A value that the type cannot hold is refused when the value is set,
not when a snapshot is taken.
"""

from __future__ import annotations

import copy
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.pickles import Pickle as Pickle
from penstock.api.pickles import pickled as pickled
from penstock.api.pickles import unpickled as unpickled
from penstock.core.errors import UsageError
from penstock.sql.column_values import REFUSED, array_of

Coerce = Callable[[Any], Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EARLIEST_US = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_LATEST_US = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_NOT_A_TIME = -(2**63)
_IMMUTABLE = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        type(None),
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
        frozenset,
    }
)


def to_python(column: Any) -> list[Any]:
    """The values of an Arrow array, as `to_pylist` gives them, in a fraction of the time for timestamps in UTC."""
    kind = column.type
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz in ("UTC", None):
        numbers = column.view(pa.int64())
        counts = (numbers.fill_null(0) if numbers.null_count else numbers).to_numpy()
        if len(counts) and (counts.min() < _EARLIEST_US or counts.max() > _LATEST_US):
            raise _beyond_python(kind, int(next(n for n in counts if not _EARLIEST_US <= n <= _LATEST_US)))
        values: list[Any]
        if kind.tz is None:
            values = counts.view("datetime64[us]").tolist()
        else:
            values = [_EPOCH + since for since in counts.view("timedelta64[us]").tolist()]
        if numbers.null_count:
            for place in np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False)).tolist():
                values[place] = None
        return values
    is_nanos = (pt.is_timestamp(kind) or pt.is_duration(kind)) and kind.unit == "ns"
    # Pandas, whose objects Arrow makes for nanoseconds, takes this number for no value: such values are not equal.
    if is_nanos and pc.any(pc.equal(column.view(pa.int64()), pa.scalar(_NOT_A_TIME, pa.int64()))).as_py():
        raise _beyond_python(kind, _NOT_A_TIME)
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:
        if pt.is_timestamp(kind) and kind.tz is not None:
            return [_moment(value) for value in column]
        raise _beyond_python(kind, error) from error


def named_values(name: str, column: Any) -> list[Any]:
    """The values of a column. An error for a value that Python does not have names the column."""
    try:
        return to_python(column)
    except UsageError as error:
        raise UsageError(f"column {name!r}: {error.message}", hint=error.hint) from error


def _moment(value: Any) -> datetime.datetime | None:
    """A time in its zone. If the time in its zone is outside of Python's years, the same time in UTC, which is
    equal."""
    try:
        found = value.as_py()
    except (OverflowError, ValueError):
        try:
            found = value.cast(pa.timestamp(value.type.unit, "UTC")).as_py()
        except (OverflowError, ValueError) as error:
            raise _beyond_python(value.type, value.value) from error
    return found  # type: ignore[no-any-return]


def _beyond_python(kind: pa.DataType, value: Any) -> UsageError:
    return UsageError(
        f"a value of type {kind} has no equal in Python: {value}",
        hint="Python has the years 1 to 9999; drop or change such rows before a step that takes rows or keys by value",
    )


def is_mutable(value: Any) -> bool:
    """Whether a value could be changed in place."""
    return type(value) not in _IMMUTABLE


def holds_mutable(kind: pa.DataType | None) -> bool:
    """Whether values of a type could be changed in place. None stands for any object, so the answer is True."""
    return kind is None or pt.is_nested(kind)


def own_copy(value: Any) -> Any:
    """A copy of a value that shares no mutable object with the value."""
    return value if type(value) in _IMMUTABLE else copy.deepcopy(value)


def coercer(kind: pa.DataType | None, *, what: str) -> Coerce:
    """The function that turns a given value into the value that a state of this type returns. The function raises
    `UsageError` naming `what`."""
    if kind is None:
        return _as_it_is
    whole = _by_arrow(kind, what)
    if pt.is_signed_integer(kind):
        return _whole_numbers(kind.bit_width, whole)
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz in ("UTC", None):
        return _times(None if kind.tz is None else datetime.UTC, whole)
    exact = _EXACT.get(kind)
    return whole if exact is None else _exactly(exact, whole)


_EXACT: dict[pa.DataType, type] = {
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
}


def _as_it_is(value: Any) -> Any:
    return value


def _exactly(exact: type, otherwise: Coerce) -> Coerce:
    return lambda value: value if type(value) is exact else otherwise(value)


def _whole_numbers(bits: int, otherwise: Coerce) -> Coerce:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda value: value if type(value) is int and least <= value <= most else otherwise(value)


def _times(zone: datetime.tzinfo | None, otherwise: Coerce) -> Coerce:
    kind = datetime.datetime
    return lambda value: value if type(value) is kind and value.tzinfo is zone else otherwise(value)


def _by_arrow(kind: pa.DataType, what: str) -> Coerce:
    def coerce(value: Any) -> Any:
        if value is None:
            return None
        try:
            return to_python(array_of([value], kind))[0]
        except REFUSED as error:
            raise UsageError(f"{what} is of type {kind}; {value!r} does not fit ({error})") from error

    return coerce
