"""An example of a schema, made from the first lines of a file, for the message to a user who gave no schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.types as pt

from penstock.connectors.file_listing import FileSet
from penstock.core.errors import StreamError

_FIRST_BYTES = 64 * 1024
_GENERAL = "for example schema='user string, n bigint, at timestamp'"
_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.date32(): "date",
}


def example_schema(files: FileSet, form: str, *, header: bool, delimiter: str) -> str:
    """A hint that shows a schema for the first line of the first file; a general hint if that cannot be read."""
    try:
        listed = files.listed()
        with files.system().open_input_stream(files.path_of(listed[0].name), compression="detect") as source:
            lines = source.read(_FIRST_BYTES).split(b"\n")
        found = _json_schema(lines[0]) if form == "json" else _csv_schema(lines[:2], delimiter, header=header)
        text = ", ".join(f"{_column(field.name)} {_type_name(field.type)}" for field in found)
    except (IndexError, OSError, ValueError, TypeError, pa.ArrowException, msgspec.DecodeError, StreamError):
        # Whatever the first line is: the message is about the schema.
        return _GENERAL
    return f"the first line of {files.shown(listed[0].name)} fits schema={text!r}" if text else _GENERAL


def _json_schema(line: bytes) -> pa.Schema:
    row = msgspec.json.decode(line, type=dict[str, Any])
    return pa.schema([pa.field(name, pa.array([value]).type) for name, value in row.items()])


def _csv_schema(lines: list[bytes], delimiter: str, *, header: bool) -> pa.Schema:
    text: Any = pa.BufferReader(b"\n".join(lines if header else lines[:1]) + b"\n")
    options = pacsv.ReadOptions(use_threads=False, autogenerate_column_names=not header)
    return pacsv.read_csv(text, read_options=options, parse_options=pacsv.ParseOptions(delimiter=delimiter)).schema


def _column(name: str) -> str:
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"


def _type_name(kind: pa.DataType) -> str:
    if pt.is_timestamp(kind):
        return "timestamp"
    if isinstance(kind, pa.ListType):
        return f"array<{_type_name(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{_column(field.name)}: {_type_name(field.type)}' for field in kind)}>"
    return _NAMES.get(kind, "string")
