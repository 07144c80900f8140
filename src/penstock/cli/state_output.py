"""State as text and as files: how values look on a terminal and in JSON, and how tables are written to files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from penstock.core.errors import StorageError, UsageError
from penstock.savepoints.tables import FoundTable
from penstock.sql.python_values import shown_rows, shown_values
from penstock.state.values import unpickled

LONGEST_VALUE = 60
"""Longer values are cut on a terminal."""

FORMATS = (".parquet", ".csv", ".json")


def json_text(value: Any) -> str:
    """One line of JSON; binary values are base64, times ISO 8601."""
    return msgspec.json.encode(value, enc_hook=repr).decode()


def cell(value: Any, *, is_raw: bool = False) -> str:
    """A value on a terminal; `is_raw` for a value of raw state."""
    if value is None:
        return "-"
    text = f"<{'raw, ' if is_raw else ''}{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def unpickled_columns(table: pa.Table, found: FoundTable | None) -> pa.Table:
    """The table with the text that Python shows for an object in the place of each pickled object. Runs code that the
    snapshot names."""
    if found is None:
        columns = [name for name in table.schema.names if name == "value"]
    else:
        names = found.columns.names
        columns = []
        if found.spec is not None and found.spec.type is None:
            columns.append(next(name for name in reversed(names) if name.lstrip("_") == "value"))
        if found.spec is not None and found.spec.kind.value == "map" and found.spec.map_key is None:
            columns.append(next(name for name in reversed(names) if name.lstrip("_") == "map_key"))
    for name in columns:
        values = [
            None if v is None else repr(unpickled(v, what="the snapshot")) for v in table.column(name).to_pylist()
        ]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.string()))
    return table


def format_of(out: str) -> str:
    """The format of a file, one of `FORMATS`, by the end of its name. Raises `UsageError` for another end."""
    suffix = Path(out).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(
            f"the name of the file {out} does not show its format", hint=f"let the name end in {', '.join(FORMATS)}"
        )
    return suffix


def write_tables(tables: Iterable[pa.Table], schema: pa.Schema, out: str) -> int:
    """Write tables to one file, one after another. Returns the number of rows. A file that could not be finished is
    removed. Raises `UsageError` if the file exists, and `StorageError` if it cannot be written."""
    kind, path = format_of(out), Path(out)
    if path.exists():
        raise UsageError(f"the file {out} exists already", hint="give the name of a file that does not exist")
    try:
        if kind == ".json":
            return _write_lines(tables, path)
        return _write_arrow(tables, schema, path, kind)
    except (OSError, pa.ArrowException) as error:
        path.unlink(missing_ok=True)
        raise StorageError(f"the file {out} could not be written: {error}") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write_lines(tables: Iterable[pa.Table], path: Path) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for table in tables:
            for row in _rows(table):
                file.write(json_text(row) + "\n")
                rows += 1
    return rows


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from shown_rows(batch)


def _write_arrow(tables: Iterable[pa.Table], schema: pa.Schema, path: Path, kind: str) -> int:
    rows = 0
    with ExitStack() as stack:
        writer: Any = None
        for table in tables:
            shaped = _flat(table) if kind == ".csv" else table
            if writer is None:
                writer = stack.enter_context(_writer(path, shaped.schema, kind))
            writer.write_table(shaped)
            rows += table.num_rows
        if writer is None:
            empty = schema.empty_table()
            stack.enter_context(_writer(path, (_flat(empty) if kind == ".csv" else empty).schema, kind))
    return rows


def _writer(path: Path, schema: pa.Schema, kind: str) -> Any:
    return arrow_csv.CSVWriter(path, schema) if kind == ".csv" else arrow_parquet.ParquetWriter(path, schema)


def _flat(table: pa.Table) -> pa.Table:
    """The table in a form that CSV can hold: nested values and bytes become text."""
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            values = [None if v is None else json_text(v).strip('"') for v in shown_values(table.column(number))]
            table = table.set_column(number, field.name, pa.array(values, pa.string()))
    return table
