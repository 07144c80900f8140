"""Values as bytes: values of a declared type as MessagePack, objects of any type as pickles.

    booleans, integers, floats, strings, binaries    themselves; floats of any width as doubles
    dates                                            days since 1970-01-01
    times, timestamps, durations                     the number that Arrow has for the value, in the unit of the type
    decimals                                         text
    lists                                            arrays
    structs                                          arrays of the fields' values, in the order of the fields
    maps                                             arrays of pairs
    any other type                                   an Arrow IPC stream of one row, as binary
    null, also inside of a value                     nil

An entry of a state with a TTL begins with the byte C1, with which no value begins. Then come 8 bytes: the time of
writing, in milliseconds since 1970, signed, most significant byte first. In a map whose keys are of any type, 4 bytes
with the length of the pickled key and the pickled key come next. Then comes the value.

The encoding is part of the format of snapshots. A change of the encoding needs a new version of the format.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.arrow_bounds import check_stream
from penstock.state.rocksdb.ordered import micros, number_of
from penstock.state.values import Pickle, pickled, unpickled

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]
_Convert = Callable[[Any], Any]
_Pair = tuple[_Convert, _Convert] | None
"""The functions that turn a value into a value that MessagePack can hold, and back; None if MessagePack can hold the
value as it is."""

UNREADABLE = (
    msgspec.MsgspecError,
    pa.ArrowException,
    struct.error,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    EOFError,
)
"""The errors that show that bytes are not a value of a type."""
TIMED = 0xC1
"""The first byte of an entry that has a time of writing."""
TIMED_SIZE = 9
_TIMED = struct.Struct(">Bq")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  # for timestamps that have no time zone
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def value_packer(kind: pa.DataType | None, *, what: str, unpickles: bool = True) -> tuple[Pack, Unpack]:
    """The function that turns values of a type into bytes, and the function that turns the bytes back into values.

    If the type is None, the functions take any object, and the bytes are a pickle. With `unpickles=False` a pickle is
    not unpickled, but handed on as a `Pickle`. The error for an object that cannot be unpickled names `what`, the place
    of the object. Values of a type are never unpickled, whatever their bytes are: bytes that are not a value of the
    type raise one of the errors in `UNREADABLE`.
    """
    if kind is None:
        return pickled, object_reader(what=what, unpickles=unpickles)
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(_python_type(kind)).decode
    pair = _conversion(kind)
    if pair is None:
        return encode, decode
    to_plain, from_plain = pair

    def pack(value: Any) -> bytes:
        return encode(None if value is None else to_plain(value))

    def unpack(data: bytes) -> Any:
        plain = decode(data)
        return None if plain is None else from_plain(plain)

    return pack, unpack


def object_reader(*, what: str, unpickles: bool) -> Unpack:
    """The function that turns pickled bytes into objects; or, unless `unpickles`, into `Pickle`s."""
    return (lambda data: unpickled(data, what=what)) if unpickles else Pickle


def with_time(packed: bytes, written_ms: int) -> bytes:
    """The bytes of an entry that was written at `written_ms`."""
    return _TIMED.pack(TIMED, written_ms) + packed


def time_of(data: bytes) -> int | None:
    """When an entry was written; None if the entry has no time."""
    return int(_TIMED.unpack_from(data)[1]) if data[0] == TIMED else None


def without_time(data: bytes) -> bytes:
    """The bytes of an entry without its time, if the entry has a time."""
    return data[TIMED_SIZE:] if data[0] == TIMED else data


# --- types -----------------------------------------------------------------------------------------------------------


def _conversion(kind: pa.DataType) -> _Pair:
    if _is_plain(kind):
        return None
    if pt.is_date(kind):
        return (
            lambda value: value.toordinal() - _EPOCH_DAY,
            lambda days: datetime.date.fromordinal(days + _EPOCH_DAY),
        )
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz in ("UTC", None):
        epoch = _NAIVE_EPOCH if kind.tz is None else _EPOCH
        return lambda v: micros(v - epoch), lambda n: epoch + datetime.timedelta(microseconds=n)
    if pt.is_timestamp(kind) or pt.is_time(kind) or pt.is_duration(kind):
        return lambda v: number_of(v, kind), lambda n: pa.scalar(n, kind).as_py()
    if pt.is_decimal(kind):
        return str, Decimal
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _lists(_conversion(kind.value_type))
    if pt.is_dictionary(kind):
        # Snapshots have no dictionaries, in which a few bytes stand for many values. So the values are written.
        return _conversion(kind.value_type)
    if pt.is_struct(kind):
        return _structs([kind.field(number) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return _maps(_conversion(kind.key_type), _conversion(kind.item_type))
    return _by_arrow(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return (
        pt.is_integer(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_boolean(kind)
        or pt.is_null(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
    )


def _python_type(kind: pa.DataType) -> Any:
    """The Python type that MessagePack must hold for a value of a type; `Any` if the values of the type are
    converted."""
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return list[_python_type(kind.value_type)] | None  # type: ignore[misc]
    for python, is_such in _PYTHON_TYPES.items():
        if any(check(kind) for check in is_such):
            return python | None
    return Any


_PYTHON_TYPES: dict[type, tuple[Callable[[Any], bool], ...]] = {
    bool: (pt.is_boolean,),
    int: (pt.is_integer,),
    float: (pt.is_float32, pt.is_float64),
    str: (pt.is_string, pt.is_large_string),
    bytes: (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary),
}


def _of_part(pair: _Pair) -> tuple[_Convert, _Convert]:
    if pair is None:
        return _as_it_is, _as_it_is
    to_plain, from_plain = pair
    return (
        lambda value: None if value is None else to_plain(value),
        lambda plain: None if plain is None else from_plain(plain),
    )


def _as_it_is(value: Any) -> Any:
    return value


def _lists(pair: _Pair) -> _Pair:
    if pair is None:
        return None
    to_plain, from_plain = _of_part(pair)
    return lambda v: [to_plain(part) for part in v], lambda p: [from_plain(part) for part in p]


def _structs(fields: list[Any]) -> _Pair:
    names = [field.name for field in fields]
    pairs = [_of_part(_conversion(field.type)) for field in fields]
    to_parts = [(name, to_plain) for name, (to_plain, _) in zip(names, pairs, strict=True)]
    from_parts = [from_plain for _, from_plain in pairs]
    return (
        lambda value: [to_plain(value[name]) for name, to_plain in to_parts],
        lambda parts: {n: convert(part) for n, convert, part in zip(names, from_parts, parts, strict=True)},
    )


def _maps(keys: _Pair, items: _Pair) -> _Pair:
    (to_key, from_key), (to_item, from_item) = _of_part(keys), _of_part(items)
    return (
        lambda value: [(to_key(key), to_item(item)) for key, item in value],
        lambda pairs: [(from_key(key), from_item(item)) for key, item in pairs],
    )


def _by_arrow(kind: pa.DataType) -> _Pair:
    schema = pa.schema([pa.field("value", kind)])

    def to_plain(value: Any) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array([value], kind)], schema=schema))
        return bytes(sink.getvalue().to_pybytes())

    def from_plain(data: bytes) -> Any:
        buffer = pa.py_buffer(data)
        check_stream(buffer)
        table = pa.ipc.open_stream(buffer).read_all()
        if table.schema != schema or table.num_rows != 1:
            raise ValueError(
                f"one value of type {kind} is expected; the data has columns of the types "
                f"{', '.join(map(str, table.schema.types))}"
            )
        table.validate(full=True)
        return table.column(0)[0].as_py()

    return to_plain, from_plain
