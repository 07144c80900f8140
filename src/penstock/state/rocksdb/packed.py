"""Values as bytes: MessagePack for typed ones, pickles for those of any type.

    booleans, integers, floats, strings, binaries    themselves; floats of any width as doubles
    dates                                            days since 1970-01-01
    times, timestamps, durations                     the number that Arrow has for it, in the unit of the type
    decimals                                         text
    lists                                            arrays
    structs                                          arrays of the fields' values, in their order
    maps                                             arrays of pairs
    any other type                                   an Arrow IPC stream of one row, as binary
    null, also inside                                nil

An entry of a state with a TTL begins with the byte C1, which no value begins with, and 8 bytes: the time since which it
lives, in milliseconds since 1970, signed, most significant byte first. In a map whose keys are of any type, 4 bytes
with the length of the pickled key and that key come next. Then comes the value.

The encoding is part of the format of snapshots: it never changes without a new version of it.
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

from penstock.state.arrow_bounds import check_stream
from penstock.state.rocksdb.ordered import micros, number_of
from penstock.state.values import Pickle, pickled, unpickled

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]
_Convert = Callable[[Any], Any]
_Pair = tuple[_Convert, _Convert] | None
"""To what MessagePack can hold and back; None if it can hold the values as they are."""

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
"""How it shows that bytes are no value of a type."""
TIMED = 0xC1
"""The first byte of an entry with a time."""
TIMED_SIZE = 9
_TIMED = struct.Struct(">Bq")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  # for timestamps that have no time zone
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def value_packer(kind: pa.DataType | None, *, what: str, unpickles: bool = True) -> tuple[Pack, Unpack]:
    """What turns values of a type (None: any object) into bytes, and back. `what` is named if one cannot be read.
    Objects are read as `Pickle`s unless it `unpickles`. Values of a type are never unpickled, whatever their bytes are:
    bytes that are no such value raise one of `UNREADABLE`."""
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
    """What turns pickled bytes into objects, or into `Pickle`s."""
    return (lambda data: unpickled(data, what=what)) if unpickles else Pickle


def with_time(packed: bytes, written_ms: int) -> bytes:
    """An entry that lives since `written_ms`."""
    return _TIMED.pack(TIMED, written_ms) + packed


def time_of(data: bytes) -> int | None:
    """Since when an entry lives; None if it was written without a time."""
    return int(_TIMED.unpack_from(data)[1]) if data[0] == TIMED else None


def without_time(data: bytes) -> bytes:
    """The value of an entry that may have a time."""
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
        # No snapshot has a dictionary, by which a few bytes stand for many values.
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
    """What MessagePack must hold for a value of a type that needs no conversion."""
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
            raise ValueError(f"a value of type {kind} is of type {', '.join(map(str, table.schema.types))}")
        table.validate(full=True)
        return table.column(0)[0].as_py()

    return to_plain, from_plain
