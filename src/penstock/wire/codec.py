"""Bytes <-> messages, channel elements and record batches.

Reading bytes from a peer gives a value or raises `MalformedMessage`, whatever the bytes are; no other error gets out.
The use of a batch that was read never reads outside the batch's own memory.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from penstock.core.elements import AnyElement
from penstock.core.errors import InvariantError, MalformedMessage, UsageError
from penstock.core.messages import Credit, ToMaster, ToSlot
from penstock.ports import Frame

T = TypeVar("T")

_TEXT_LIMIT = 200
_BUFFER_ALIGNMENT = 8

_encoder = msgspec.msgpack.Encoder()
_to_master: msgspec.msgpack.Decoder[ToMaster] = msgspec.msgpack.Decoder(ToMaster)
_to_slot: msgspec.msgpack.Decoder[ToSlot] = msgspec.msgpack.Decoder(ToSlot)
_credit = msgspec.msgpack.Decoder(Credit)
_element: msgspec.msgpack.Decoder[AnyElement] = msgspec.msgpack.Decoder(AnyElement)


def encode_message(message: ToMaster | ToSlot | Credit) -> bytes:
    """The payload of a control or credit packet."""
    return _encoder.encode(message)


def encode_element(element: AnyElement) -> bytes:
    """The payload of an element packet."""
    return _encoder.encode(element)


def decode_to_master(payload: Frame) -> ToMaster:
    """A message from a slot to the job master. Raises `MalformedMessage`."""
    return decode_with(_to_master, payload, "message to the job master")


def decode_to_slot(payload: Frame) -> ToSlot:
    """A message from the job master to a slot. Raises `MalformedMessage`."""
    return decode_with(_to_slot, payload, "message to a slot")


def decode_credit(payload: Frame) -> Credit:
    """A grant of credit. Raises `MalformedMessage`."""
    return decode_with(_credit, payload, "credit")


def decode_element(payload: Frame) -> AnyElement:
    """An element of a channel that is not data. Raises `MalformedMessage`."""
    return decode_with(_element, payload, "channel element")


def decode_with(decoder: msgspec.msgpack.Decoder[T], payload: Frame, what: str) -> T:
    """Decode msgpack. Every failure of the decoder becomes `MalformedMessage`, whose text begins with `what`."""
    try:
        return decoder.decode(payload)
    # ValueError: text that is not UTF-8. RecursionError: nesting without end.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise malformed(what, error) from error


def malformed(what: str, error: BaseException) -> MalformedMessage:
    """The error to raise for `what` that could not be read because of `error`: one short line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return MalformedMessage(f"{what} could not be read: {reason[:_TEXT_LIMIT]}")


class BatchCodec:
    """Writes and reads the batches of one stream, as Arrow messages without the schema: both ends know the schema.

    The constructor raises `UsageError` for a schema with dictionary columns: dictionaries travel in messages of their
    own, which a channel does not carry.
    """

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            if _has_dictionary(field.type):
                raise UsageError(
                    f"column {field.name!r} is dictionary-encoded ({field.type}), which cannot be exchanged",
                    hint="cast the column to its plain type, for example to string, before the exchange",
                )
        self.schema = schema

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The batch, copied into memory of its own. Of a slice only the slice's rows are copied."""
        if not batch.schema.equals(self.schema):
            raise InvariantError(f"batch of schema {batch.schema} sent in a stream of schema {self.schema}")
        return batch.serialize()

    def decode(self, payload: Frame) -> pa.RecordBatch:
        """The batch in `payload`. The batch shares the memory of `payload` and keeps it alive. Raises
        `MalformedMessage`."""
        try:
            buffer = pa.py_buffer(payload)
            if buffer.address % _BUFFER_ALIGNMENT:
                # Numbers at unaligned addresses are slow for all readers, and some libraries that get batches from here
                # refuse them.
                buffer = pa.py_buffer(buffer.to_pybytes())
            batch = pa.ipc.read_record_batch(buffer, self.schema)
            # The check costs nothing for columns of fixed width, and looks at each value of the other columns. Without
            # the check, an offset that points outside would crash the process when the value is read.
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError) as error:
            raise malformed("record batch", error) from error
        return batch


def _has_dictionary(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))
