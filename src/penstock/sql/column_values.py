"""Python values as an Arrow column: which values a type takes.

Arrow itself changes some values without a word: 2.5 becomes 2 in a column of whole numbers, True becomes 1.0, a UUID
becomes a number, a time becomes a date, a set becomes a list in an order of chance, a nanosecond is cut off, 1e300
becomes infinite in a column of 4 bytes, a field that a struct does not have is dropped. Here such values are refused.
Values that PySpark's `createDataFrame` refuses are refused, too, unless the value stays equal or has a single meaning:
a whole number where the column is `double`, `float` or `decimal` (Arrow refuses numbers that have no equal there) or
`timestamp`, scalars of NumPy, and subclasses such as an `IntEnum`. `docs/guide/sources.md` has the list.

Types of values are looked at per column, not value by value: the set of the Python types in a column is small.
"""

from __future__ import annotations

import datetime
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

REFUSED = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""What `array_of` raises for a value that does not fit a type."""

_PACKED: dict[Any, str] = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}
_CODES = {kind.id: code for kind, code in _PACKED.items()}
_SHOWN_LETTERS = 80
_NOTHING = type(None)
_WHOLE = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
_NO_NUMBERS = (bool, np.timedelta64)
_NUMPY_TIMES = (np.datetime64, np.timedelta64)
_PYTHON_TIMES = (datetime.datetime, datetime.timedelta, datetime.time)
_LISTS_OF_ANOTHER_KIND = (str, bytes, bytearray, memoryview, dict)


def array_of(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Values as an Arrow array. Raises one of `REFUSED` for a value that the type does not take."""
    code = _CODES.get(kind.id)
    if code is not None:
        given = list(map(type, values))
        # Counted in a list: a set of the types takes half as long again.
        if given.count(float if code == "d" else int) == len(given):
            return _packed(values, kind, code)
        _check_types(set(given), kind)
    else:
        _check(values, kind)
    return pa.array(values, kind)


def check_objects(series: Any, kind: pa.DataType) -> None:
    """Raise `ValueError` if Arrow would change a value of a pandas column. Columns of Python objects are looked at, and
    columns of numbers that could become infinite: other columns are cast, and a cast refuses to change a value."""
    if series.dtype == object:
        _check(series[series.notna()].tolist(), kind)
    elif _is_narrow(kind) and getattr(series.dtype, "kind", "") == "f":
        _check_finite(series.to_numpy(dtype=np.float64, na_value=np.nan), kind)


def shown(value: Any) -> str:
    """A value and its type, for messages."""
    text = repr(value)
    text = text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"
    return f"{text} ({type(value).__name__})"


def first_misfit(values: Iterable[Any], kind: pa.DataType) -> tuple[int, str, str] | None:
    """The first value that does not fit a type: its number, the value for messages, and why it does not fit. None if
    every value fits by itself."""
    for number, value in enumerate(values):
        try:
            array_of([value], kind)
        except REFUSED as reason:
            return number, shown(value), (str(reason) or type(reason).__name__).splitlines()[0]
    return None


def _packed(values: Sequence[Any], kind: pa.DataType, code: str) -> Any:
    """An array of plain numbers, in a third of the time that Arrow takes: this pays for the look at the types."""
    try:
        packed = struct.pack(f"{len(values)}{code}", *values)
    except struct.error:
        # A number is too large: the error of Arrow says which.
        return pa.array(values, kind)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(packed)])


def _check(values: Iterable[Any], kind: Any) -> None:
    """Raise `ValueError` if Arrow would change a value, at any depth."""
    if pt.is_string(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        # Arrow takes no value that would change here.
        return
    values = values if isinstance(values, list | tuple) else list(values)
    if pt.is_temporal(kind):
        _check_times(values, kind)
        return
    _check_types(set(map(type, values)), kind)
    if _is_narrow(kind):
        floats = [value for value in values if isinstance(value, float | np.floating)]
        _check_finite(np.array(floats, np.float64), kind)
    if isinstance(kind, pa.StructType):
        _check_structs(_parts(values), kind)
    elif isinstance(kind, pa.MapType):
        _check_maps(_parts(values), kind)
    elif (inner := getattr(kind, "value_type", None)) is not None:
        _check(itertools.chain.from_iterable(_parts(values)), inner)


def _is_narrow(kind: pa.DataType) -> bool:
    """Whether numbers of Python can be too large for the type, and become infinite in it."""
    return pt.is_float32(kind) or pt.is_float16(kind)


def _check_finite(numbers: Any, kind: pa.DataType) -> None:
    with np.errstate(over="ignore"):
        narrow = numbers.astype(kind.to_pandas_dtype())
    lost = np.isinf(narrow) & np.isfinite(numbers)
    if lost.any():
        raise ValueError(f"{numbers[lost][0]} is too large for {kind}, and would become infinite")


def _check_times(values: Sequence[Any], kind: Any) -> None:
    """Raise `ValueError` for a value that is no time of the kind, or that the type would cut."""
    given = list(map(type, values))
    is_usual = given.count(datetime.datetime) == len(given)
    if not is_usual or not pt.is_timestamp(kind):
        _check_types(set(given), kind)
    if pt.is_timestamp(kind) and kind.tz is None and any(getattr(v, "tzinfo", None) is not None for v in values):
        raise ValueError("the time has a time zone, and the column has none")
    if not is_usual:
        _check_numpy_times(values, set(given), kind)
    _check_uncut(values, set() if is_usual else set(given), kind)


def _check_structs(structs: Sequence[Any], kind: pa.StructType) -> None:
    if any(len(value) != kind.num_fields for value in structs if isinstance(value, tuple)):
        raise ValueError(f"a tuple must have a value for each of the {kind.num_fields} fields")
    names = [field.name for field in kind]
    unknown = set[Any]().union(*(value for value in structs if isinstance(value, dict))).difference(names)
    if unknown:
        raise ValueError(f"the struct has no field {min(map(repr, unknown))}; its fields are {', '.join(names)}")
    for place, field in enumerate(kind):
        _check((value.get(field.name) if isinstance(value, dict) else value[place] for value in structs), field.type)


def _check_maps(maps: Sequence[Any], kind: Any) -> None:
    pairs = [pair for value in maps for pair in (value.items() if isinstance(value, dict) else value)]
    # Arrow ends the process if there is None in place of a pair.
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):  # a key and a value
        raise ValueError("a map is a dict, or a list of tuples of a key and a value")
    _check((key for key, _ in pairs), kind.key_type)
    _check((item for _, item in pairs), kind.item_type)


def _check_numpy_times(values: Sequence[Any], given: set[type], kind: Any) -> None:
    """Raise `ValueError` for a time of NumPy that counts another unit than the column. In an array of NumPy, Arrow
    would take nanoseconds for microseconds."""
    if not any(issubclass(one, _NUMPY_TIMES) for one in given):
        return
    wanted = "D" if pt.is_date(kind) else kind.unit
    for unit in {value.dtype for value in values if isinstance(value, _NUMPY_TIMES) and not np.isnat(value)}:
        if np.datetime_data(unit) != (wanted, 1):
            raise ValueError(f"{kind} takes no {unit}: the units differ")


def _check_uncut(values: Sequence[Any], given: set[type], kind: Any) -> None:
    """Raise `ValueError` for a time that the type would cut. A cast refuses to cut a time. The making of an array cuts
    without a word. `given` has the types of the values, unless all are `datetime`."""
    if pt.is_date(kind) or kind.unit == "ns":
        return
    if any(hasattr(one, "nanosecond") or hasattr(one, "nanoseconds") for one in given):  # times of pandas
        fine = [v for v in values if getattr(v, "nanosecond", 0) or getattr(v, "nanoseconds", 0)]
        pa.array(fine, _with_unit(kind, "ns")).cast(kind)
    if kind.unit != "us":
        # Whole numbers count the units of the column, and the units of times of NumPy and Arrow are compared.
        pa.array([v for v in values if isinstance(v, _PYTHON_TIMES)], _with_unit(kind, "us")).cast(kind)


def _with_unit(kind: Any, unit: Any) -> pa.DataType:
    if pt.is_timestamp(kind):
        zone: Any = kind.tz
        return pa.timestamp(unit, zone)
    return pa.duration(unit) if pt.is_duration(kind) else pa.time64(unit)


def _parts(values: Iterable[Any]) -> Sequence[Any]:
    """The values that have values inside them. Scalars of Arrow know their type, and Arrow compares the types."""
    return [value for value in values if value is not None and not isinstance(value, pa.Scalar)]


def _check_types(given: set[type], kind: pa.DataType) -> None:
    for one in sorted(given - {_NOTHING}, key=lambda found: found.__qualname__):
        if not _takes(kind, one):
            raise ValueError(f"{kind} takes no {one.__qualname__}")


def _takes(kind: pa.DataType, given: type) -> bool:
    """Whether values of a Python type may go to Arrow for a column of the type. Arrow may refuse them still."""
    if issubclass(given, pa.Scalar):
        return True
    if pt.is_integer(kind):
        return issubclass(given, _WHOLE) and not issubclass(given, _NO_NUMBERS)
    if pt.is_floating(kind):
        return issubclass(given, _NUMBERS) and not issubclass(given, _NO_NUMBERS)
    if pt.is_timestamp(kind):
        # A whole number counts the units since 1970, in UTC.
        return issubclass(given, datetime.datetime | np.datetime64 | int) and given is not bool
    if pt.is_date(kind):
        return issubclass(given, datetime.date | np.datetime64) and not issubclass(given, datetime.datetime)
    if pt.is_duration(kind):
        return issubclass(given, datetime.timedelta | np.timedelta64)
    if pt.is_time(kind):
        return issubclass(given, datetime.time)
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return not issubclass(given, str)
    if isinstance(kind, pa.StructType):
        return issubclass(given, dict | tuple)
    if isinstance(kind, pa.MapType):
        return issubclass(given, dict | list | tuple)
    if pt.is_nested(kind):
        is_list = hasattr(given, "__len__") and hasattr(given, "__getitem__")
        return is_list and not issubclass(given, _LISTS_OF_ANOTHER_KIND)
    return True
