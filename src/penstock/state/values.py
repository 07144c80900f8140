"""Values between Arrow and Python: single values on their way into typed state.

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

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.pickles import Pickle as Pickle
from penstock.api.pickles import pickled as pickled
from penstock.api.pickles import unpickled as unpickled
from penstock.core.errors import UsageError
from penstock.sql.column_values import REFUSED, array_of
from penstock.sql.python_values import to_python

Coerce = Callable[[Any], Any]

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
