"""Keys as bytes. The order of the bytes is the order of the keys: null first, then ascending, NaN last; column by
column.

The bytes of one key are never the beginning of the bytes of another key. So exactly the rows of a key begin with the
bytes of that key. Every column begins with a byte:

    00   null
    01   a value
    02   NaN

After 01 come, most significant byte first:

    signed integers                 as many bytes as the type has, the sign bit inverted
    unsigned integers               as many bytes as the type has
    booleans                        one byte, 00 or 01
    floats of any width             the 8 bytes of a double: all bits inverted if negative, else the sign bit inverted
    decimals                        16 bytes, the number without its point, the sign bit inverted
    dates                           4 bytes, the days since 1970-01-01, the sign bit inverted
    times and timestamps            8 bytes, the number that Arrow has for the time, the sign bit inverted
    strings (UTF-8) and binaries    the bytes, 00 written as 00 FF, and then 00 00

The encoding is part of the format of snapshots. A change of the encoding needs a new version of the format.
"""

from __future__ import annotations

import datetime
import decimal
import pickle
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError
from penstock.sql.python_values import to_python
from penstock.state.backend import Key
from penstock.state.keys import NAN

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]
"""Takes bytes and an offset. Returns the value that begins at the offset, and the offset behind the value."""

_NULL, _VALUE, _NAN = b"\x00", b"\x01", b"\x02"
_DOUBLE = struct.Struct(">d")
_NUMBER = struct.Struct(">Q")
_HALF = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  # for timestamps that have no time zone
_DIGITS = decimal.Context(prec=76)
"""Enough digits to compute with any decimal without rounding."""
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


class KeyCodec:
    """Turns keys with the columns of a schema into bytes, and back."""

    def __init__(self, schema: pa.Schema) -> None:
        columns = [_column(field.type) for field in schema]
        self.encode: Callable[[Key], bytes]
        self.decode: Decode
        if len(columns) == 1:
            self.encode, self.decode = columns[0]
        else:
            encoders = [encode for encode, _ in columns]
            decoders = [decode for _, decode in columns]
            self.encode = lambda key: b"".join([encode(v) for encode, v in zip(encoders, key, strict=True)])
            self.decode = lambda data, place: _decode_all(decoders, data, place)


def value_codec(kind: pa.DataType) -> tuple[Encode, Decode]:
    """The functions that turn values of a type into bytes, and back. Raises `UsageError` if values of the type cannot
    be keys."""
    return _column(kind)


def _decode_all(decoders: list[Decode], data: bytes, place: int) -> tuple[tuple[Any, ...], int]:
    values = []
    for decode in decoders:
        value, place = decode(data, place)
        values.append(value)
    return tuple(values), place


def _column(kind: pa.DataType) -> tuple[Encode, Decode]:
    if pt.is_floating(kind):
        return _encode_double, _decode_double
    if pt.is_boolean(kind):
        return _nullable(lambda value: b"\x01\x01" if value else b"\x01\x00", lambda data, at: (data[at] == 1, at + 1))
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _nullable(lambda value: _escaped(value.encode()), _decode_text)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return _nullable(_escaped, _decode_binary)
    if pt.is_integer(kind):
        return _integers(kind.bit_width // 8, signed=pt.is_signed_integer(kind))
    if pt.is_decimal128(kind):
        return _converted(_integers(16, signed=True), *_without_point(kind))
    if pt.is_date(kind):
        return _converted(_integers(4, signed=True), _to_days, _from_days)
    numbers = _integers(8, signed=True)
    if pt.is_timestamp(kind) and kind.unit == "us" and kind.tz in ("UTC", None):
        epoch = _NAIVE_EPOCH if kind.tz is None else _EPOCH
        return _converted(numbers, lambda v: micros(v - epoch), lambda n: epoch + datetime.timedelta(microseconds=n))
    if pt.is_timestamp(kind) or pt.is_time(kind):
        return _converted(numbers, lambda v: number_of(v, kind), lambda n: to_python(pa.array([n], kind))[0])
    raise UsageError(f"values of type {kind} cannot be keys")


def micros(since: datetime.timedelta) -> int:
    """A time difference in microseconds."""
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def number_of(value: Any, kind: pa.DataType) -> int:
    """The number that Arrow has for a date or time."""
    scalar: Any = pa.scalar(value, kind)
    return int(scalar.value)


def _without_point(kind: Any) -> tuple[Callable[[Any], int], Callable[[int], Any]]:
    end, scale = 10**kind.precision, kind.scale

    def to_number(value: Any) -> int:
        scaled = _DIGITS.scaleb(value, scale)
        number = int(scaled)
        if number != scaled or not -end < number < end:
            raise UsageError(
                f"{value} does not fit {kind}, which has {kind.precision} digits, {scale} of them behind the point"
            )
        return number

    return to_number, lambda number: _DIGITS.scaleb(number, -scale)


def _to_days(value: datetime.date) -> int:
    return value.toordinal() - _EPOCH_DAY


def _from_days(days: int) -> datetime.date:
    return datetime.date.fromordinal(days + _EPOCH_DAY)


def _nullable(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    """The same functions for values that may be null. `encode` must write the first byte of a value itself; `decode` is
    called with the offset behind that byte."""

    def encode_nullable(value: Any) -> bytes:
        return _NULL if value is None else encode(value)

    def decode_nullable(data: bytes, place: int) -> tuple[Any, int]:
        return (None, place + 1) if data[place] == 0 else decode(data, place + 1)

    return encode_nullable, decode_nullable


def _integers(size: int, *, signed: bool) -> tuple[Encode, Decode]:
    shift = 1 << (8 * size - 1) if signed else 0
    if size == 8 and signed:
        pack = struct.Struct(">BQ").pack

        def encode(value: int) -> bytes:
            return _NULL if value is None else pack(1, value + shift)
    else:

        def encode(value: int) -> bytes:
            return _NULL if value is None else b"\x01" + (value + shift).to_bytes(size, "big")

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        if data[place] == 0:
            return None, place + 1
        end = place + 1 + size
        return int.from_bytes(data[place + 1 : end], "big") - shift, end

    return encode, decode


def _converted(
    numbers: tuple[Encode, Decode], to_number: Callable[[Any], int], from_number: Callable[[int], Any]
) -> tuple[Encode, Decode]:
    encode_number, decode_number = numbers

    def encode(value: Any) -> bytes:
        return _NULL if value is None else encode_number(to_number(value))

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        number, end = decode_number(data, place)
        return (None if number is None else from_number(number)), end

    return encode, decode


def _encode_double(value: float | None) -> bytes:
    if value is None:
        return _NULL
    if value != value:
        return _NAN
    # Adding zero turns -0.0 into 0.0.
    bits = _NUMBER.unpack(_DOUBLE.pack(value + 0.0))[0]
    return _VALUE + _NUMBER.pack(bits ^ _ALL if bits & _HALF else bits | _HALF)


def _decode_double(data: bytes, place: int) -> tuple[Any, int]:
    first = data[place]
    if first != 1:
        return (None if first == 0 else NAN), place + 1
    bits = _NUMBER.unpack_from(data, place + 1)[0]
    return _DOUBLE.unpack(_NUMBER.pack(bits ^ _HALF if bits & _HALF else bits ^ _ALL))[0], place + 9


def _escaped(value: bytes) -> bytes:
    return b"\x01%b\x00\x00" % (value.replace(b"\x00", b"\x00\xff") if b"\x00" in value else value)


def _decode_binary(data: bytes, place: int) -> tuple[bytes, int]:
    end = data.index(b"\x00", place)
    while data[end + 1]:
        end = data.index(b"\x00", end + 2)
    return data[place:end].replace(b"\x00\xff", b"\x00"), end + 2


def _decode_text(data: bytes, place: int) -> tuple[str, int]:
    value, end = _decode_binary(data, place)
    return value.decode(), end


# --- times of timers -------------------------------------------------------------------------------------------------


def encode_time(time_us: int) -> bytes:
    """The time of a timer, in 8 bytes."""
    return _NUMBER.pack(time_us + _HALF)


def decode_time(data: bytes, place: int) -> int:
    """The time that begins at an offset."""
    return int(_NUMBER.unpack_from(data, place)[0]) - _HALF


# --- any object as a key of a map ------------------------------------------------------------------------------------


def object_identity(value: Any) -> bytes:
    """Bytes that identify an object as a map key, in every process.

    Numbers, texts, bytes, None, and tuples and frozen sets of these have the same bytes if they are equal: 1, 1.0 and
    True are one key, as in a dict. For any other object the bytes are its pickle, in which it makes no difference
    whether equal parts are the same object. Two such objects that are equal but have different pickles are two keys.
    """
    kind = type(value)
    if kind is str:
        return b"s" + _counted(value.encode("utf-8", "surrogatepass"))
    if kind is bytes:
        return b"b" + _counted(value)
    if value is None:
        return b"n"
    if kind is bool or kind is int or (kind is float and value.is_integer()):
        return b"i" + _counted(b"%d" % int(value))
    if kind is float:
        return b"f" + (b"nan" if value != value else _DOUBLE.pack(value))
    if kind is tuple:
        return b"t" + _counted(b"".join([_counted(object_identity(part)) for part in value]))
    if kind is frozenset:
        return b"z" + _counted(b"".join(sorted(_counted(object_identity(part)) for part in value)))
    target = BytesIO()
    pickler = pickle.Pickler(target, protocol=5)
    # Without the fast mode, a value that has one object twice would have other bytes than a value that has two equal
    # objects.
    pickler.fast = True
    pickler.dump(value)
    return b"p" + _counted(target.getvalue())


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
