"""Arrow columns as Python values.

Arrow has times that Python does not have: Python ends with the year 9999. `to_python` and `rows_of` refuse such a time
with the name of its column. `shown_values` is for people, and gives a text in the place of such a time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.errors import UsageError

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EARLIEST_US = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_LATEST_US = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_NOT_A_TIME = -(2**63)
_LAST_YEAR = 9999
_REFUSED = (OverflowError, ValueError)
"""What Arrow raises for a value that has no equal in Python."""


def to_python(column: Any) -> list[Any]:
    """The values of an Arrow array, as `to_pylist` gives them, in a fraction of the time for timestamps in UTC. Raises
    `UsageError` for a value that Python does not have."""
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
    except _REFUSED as error:
        if pt.is_timestamp(kind) and kind.tz is not None:
            return [_moment(value) for value in column]
        raise _beyond_python(kind, error) from error


def named_values(name: str, column: Any) -> list[Any]:
    """The values of a column. An error for a value that Python does not have names the column."""
    try:
        return to_python(column)
    except UsageError as error:
        raise UsageError(f"column {name!r}: {error.message}", hint=error.hint) from error


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch. Raises `UsageError` that names the column of a value that Python does not have."""
    names = batch.schema.names
    columns = [named_values(name, column) for name, column in zip(names, batch.columns, strict=True)]
    return _maker(tuple(names))(columns)


@lru_cache(maxsize=256)
def _maker(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[dict[str, Any]]]:
    """The function that makes rows of columns with these names. Its code has the names as literals, as the code of a
    named tuple has: a row takes a sixth of the time of `dict(zip(names, values))`."""
    if not names:
        return lambda _: []
    values = [f"v{number}" for number in range(len(names))]
    pairs = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    source = f"lambda columns: [{{{pairs}}} for {', '.join(values)}, in zip(*columns, strict=True)]"
    made: Callable[[list[list[Any]]], list[dict[str, Any]]] = eval(source, {"zip": zip})
    return made


def table_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table. Raises `UsageError` as `rows_of` does."""
    return [row for batch in table.to_batches() for row in rows_of(batch)]


# --- for people ------------------------------------------------------------------------------------------------------


def shown_values(column: Any) -> list[Any]:
    """The values of a column as `to_pylist` gives them, with a text in the place of a time that Python does not
    have.

    >>> shown_values(pa.array([0, 253_402_300_800_000_000]).cast(pa.timestamp("us")))
    [datetime.datetime(1970, 1, 1, 0, 0), '+10000-01-01 00:00:00']
    """
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except _REFUSED:
        return [_shown(value) for value in column]


def shown_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a table, with `shown_values`."""
    names = table.schema.names
    columns = map(shown_values, table.columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _shown(value: Any) -> Any:
    kind = value.type
    try:
        return value.as_py()
    except _REFUSED:
        if pt.is_timestamp(kind) or pt.is_date(kind):
            return _as_text(value)
        if isinstance(kind, pa.StructType):
            return {name: _shown(inner) for name, inner in value.items()}
        if isinstance(kind, pa.MapType):
            pairs = value.values
            return [(_shown(key), _shown(item)) for key, item in zip(pairs.field(0), pairs.field(1), strict=True)]
        if pt.is_nested(kind) and value.values is not None:
            return [_shown(inner) for inner in value.values]
        return f"{getattr(value, 'value', kind)} {getattr(kind, 'unit', '')}".rstrip()


def _as_text(value: Any) -> str:
    """A time, as Spark shows it."""
    kind = value.type
    unit: Any = kind.unit if pt.is_timestamp(kind) else "D" if pt.is_date32(kind) else "ms"
    moment = np.datetime64(value.value, unit)
    if np.isnat(moment):
        return f"{value.value} {unit} since 1970"
    day, _, time = str(moment).partition("T")
    year = int(str(moment.astype("datetime64[Y]")))
    time = time.rstrip("0").rstrip(".") if "." in time else time
    return f"{'+' if year > _LAST_YEAR else ''}{day}{' ' if time else ''}{time}"


def _moment(value: Any) -> datetime.datetime | None:
    """A time in its zone. If the time in its zone is outside of Python's years, the same time in UTC, which is
    equal."""
    try:
        found = value.as_py()
    except _REFUSED:
        try:
            found = value.cast(pa.timestamp(value.type.unit, "UTC")).as_py()
        except _REFUSED as error:
            raise _beyond_python(value.type, value.value) from error
    return found  # type: ignore[no-any-return]


def _beyond_python(kind: pa.DataType, value: Any) -> UsageError:
    return UsageError(
        f"a value of type {kind} has no equal in Python: {value}",
        hint="Python has the years 1 to 9999; drop or change such rows before a step that takes rows or keys by "
        "value, or take the rows as Arrow, Polars or pandas",
    )
