"""The canonical format: a database is written to canonical files, and canonical files are loaded into a database, in
pieces that fit into memory.

Each piece of the state is written to a canonical file of its own, which is complete in itself. The rows of all files
together are the state. A state that fits into one piece is one file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.state import StateKind
from penstock.core.messages import StateFile
from penstock.sql.python_values import to_python
from penstock.state import format as canonical
from penstock.state.backend import StateContext, StateWriter
from penstock.state.rocksdb.catalog import TIMERS_BY_KEY, TIMERS_BY_TIME, Catalog
from penstock.state.rocksdb.database import Database
from penstock.state.rocksdb.ordered import KeyCodec
from penstock.state.rocksdb.packed import UNREADABLE
from penstock.state.rocksdb.tables import PREFIX_SIZE, Counter, EntryCodec, Row, database_rows
from penstock.state.rocksdb.timers import timer_of, timer_rows

_PIECE_BYTES = 32 * 1024 * 1024
_LOAD_ROWS = 500_000
_LOAD_BYTES = 64 * 1024 * 1024
_ROWS_BETWEEN_PAUSES = 2_048
_PAUSE_SECONDS = 0.0003

_BY_TIME = TIMERS_BY_TIME.to_bytes(2, "big")
_BY_KEY = TIMERS_BY_KEY.to_bytes(2, "big")


class Loader:
    """Loads rows, which may come in any order, into a database."""

    def __init__(self, db: Database, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self._rows: list[Row] = []
        self._bytes = 0
        self._files = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows. The key of each row must not be in the database yet."""
        for row in rows:
            self._rows.append(row)
            self._bytes += len(row[0]) + len(row[1])
            if len(self._rows) >= _LOAD_ROWS or self._bytes >= _LOAD_BYTES:
                self.finish()

    def finish(self) -> None:
        """Write the added rows that are still in memory to the database."""
        if self._rows:
            self._rows.sort()
            self._files += 1
            self._db.ingest(self._folder / f"loaded-{self._files}.sst", self._rows)
            self._rows, self._bytes = [], 0


def load(
    file: canonical.CanonicalFile, context: StateContext, catalog: Catalog, loader: Loader, counter: Counter
) -> None:
    """Load the rows of a canonical file. Only the rows of this subtask's key groups are loaded."""
    own, now = context.own_groups, context.now()
    keys = KeyCodec(context.keys)
    for entry in file.header.tables:
        canonical.check_keys(file.key_schema(entry), context)
        if entry.kind == canonical.TIMERS or entry.name in context.dropped:
            continue
        catalog.take_in([(file.spec_of(entry), None)], context, now=now)
        codec = EntryCodec(next(found for found in catalog.entries if found.name == entry.name))
        groups = to_python(file.table(entry, own).column(0))
        rows = zip(groups, file.rows(entry, codec.spec, own, now=now), strict=True)
        placed = (
            (group.to_bytes(2, "big") + codec.number + keys.encode(key), inner, found)
            for group, (key, inner, found) in rows
        )
        loader.add(database_rows(codec, placed, counter))
    for key, group, kind, time_us in file.timers(own):
        loader.add(timer_rows(group, keys.encode(key), kind, time_us))


class _Piece:
    """The rows of one canonical file."""

    def __init__(self) -> None:
        self.states: dict[bytes, list[canonical.Row]] = {}
        self.timers: list[canonical.TimerRow] = []
        self.rows = 0
        self.bytes = 0


def write(
    context: StateContext,
    codecs: Iterable[EntryCodec],
    items: Iterator[Row],
    writer: StateWriter,
    *,
    now: int,
    piece_rows: int,
) -> tuple[StateFile, ...]:
    """Write all `items` to canonical files of about `piece_rows` rows each. The function reads nothing but its
    arguments, so that it can run off the loop."""
    return tuple(map(writer.put, contents(context, codecs, items, now=now, piece_rows=piece_rows)))


def contents(
    context: StateContext, codecs: Iterable[EntryCodec], items: Iterator[Row], *, now: int, piece_rows: int
) -> Iterator[pa.Buffer]:
    """The contents of the canonical files that `items` fill, one after another. At most one piece is in memory."""
    by_number = {codec.number: codec for codec in codecs}
    for piece in _pieces(KeyCodec(context.keys), by_number, items, piece_rows):
        states = ((by_number[number].spec, iter(rows)) for number, rows in piece.states.items())
        data = canonical.encode(context, states, iter(piece.timers), now=now)
        if data is not None:
            yield data


def _pieces(keys: KeyCodec, codecs: dict[bytes, EntryCodec], items: Iterator[Row], piece_rows: int) -> Iterator[_Piece]:
    piece = _Piece()
    for number_of_row, (row, value) in enumerate(items, start=1):
        number = row[2:PREFIX_SIZE]
        if number != _BY_TIME:
            if number == _BY_KEY:
                piece.timers.append(timer_of(keys, row))
            else:
                piece.states.setdefault(number, []).append(_state_row(keys, codecs[number], row, value))
            piece.rows += 1
            piece.bytes += len(row) + len(value)
            # Asked after every row: a few thousand rows can have gigabytes.
            if piece.rows >= piece_rows or piece.bytes >= _PIECE_BYTES:
                yield piece
                piece = _Piece()
        if number_of_row % _ROWS_BETWEEN_PAUSES == 0:
            # A pause of zero would not help: this thread would have the interpreter back before another thread wakes
            # up.
            time.sleep(_PAUSE_SECONDS)
    if piece.rows:
        yield piece


def _state_row(keys: KeyCodec, codec: EntryCodec, row: bytes, value: bytes) -> tuple[Any, Any, Any]:
    try:
        key, end = keys.decode(row, PREFIX_SIZE)
        if codec.spec.kind is StateKind.MAP:
            return key, *codec.decode_in_map(row[end:], value)
        return key, None, codec.decode(value)
    except UNREADABLE as error:
        raise codec.unreadable(error) from error
