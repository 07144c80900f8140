"""Sources that read scripts: lists of records, with marks for pauses and crashes between the records."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from penstock.api.connector import HELD_MS, End, Pause, Polled, Source, SourceReader, SplitProgress
from penstock.api.given_rows import batch_of
from penstock.core.errors import UsageError
from penstock.sql.schemas import SchemaLike, as_schema, check_schema, unknown_column

SILENCE_MS = 1_000
"""How long a reader pauses at the end of a script that falls silent instead of ending."""

_numbers = itertools.count(1)
"""The numbers that tell sources apart, also after they were pickled into a simulated process."""


@dataclass(frozen=True)
class Mark:
    """An item of a script that is not a record: a pause or a crash. Made by `pause` and `crash`."""

    pause_ms: int | None
    """How long the pause lasts; None if the mark is a crash."""


def pause(ms: int) -> Mark:
    """A mark for a script: no record of the script comes for `ms` milliseconds."""
    if not isinstance(ms, int) or isinstance(ms, bool) or ms < 1:
        raise UsageError(f"pause takes whole milliseconds, at least 1, not {ms!r}")
    return Mark(ms)


def crash() -> Mark:
    """A mark for a script: the process that reads the mark dies at the mark, the first time that the mark is read."""
    return Mark(None)


ScriptItem = Mapping[str, Any] | pa.RecordBatch | Mark


def scripted(*scripts: Iterable[ScriptItem], schema: SchemaLike | None = None, end: bool = True) -> Scripted:
    """A source that reads scripts: records as dicts or Arrow batches, and marks between the records.

    Each script is a split of its own: it is read in its order, by one subtask, and has an event time of its own.
    Records of different scripts come in any order. A record of one script is not late because another script is further
    in event time. Without `schema` the source has the columns of the first Arrow batch; if no script has a batch, Arrow
    infers the columns from the dicts. A column that a dict leaves out is null. With `end=False` the source stays silent
    after its scripts instead of ending, and `run` ends the job.
    """
    if not scripts:
        raise UsageError("scripted needs at least one script", hint='for example scripted([{"word": "to"}, crash()])')
    lists = [_as_list(script) for script in scripts]
    known = _schema_of(lists) if schema is None else as_schema(schema, argument="schema")
    return Scripted(tuple(_chunks(items, known) for items in lists), known, end=end)


def _as_list(script: Iterable[ScriptItem]) -> list[ScriptItem]:
    if isinstance(script, str | Mapping | pa.RecordBatch) or not isinstance(script, Iterable):
        raise UsageError(
            f"a script is a list of records and marks, not {script!r:.80}",
            hint='for example scripted([{"word": "to"}, crash()])',
        )
    items = list(script)
    for item in items:
        if not isinstance(item, Mapping | pa.RecordBatch | Mark):
            raise UsageError(
                f"a script cannot have {item!r:.80} in it", hint="give dicts, Arrow batches, pause(ms) or crash()"
            )
    return items


def _schema_of(scripts: list[list[ScriptItem]]) -> pa.Schema:
    rows: list[Mapping[str, Any]] = []
    for item in itertools.chain(*scripts):
        if isinstance(item, pa.RecordBatch):
            return check_schema(item.schema, argument="the schema of the script's first batch")
        if isinstance(item, Mapping):
            rows.append(item)
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        columns = {str(name): pa.array([row.get(name) for row in rows]) for name in names}
    except pa.ArrowException as error:
        raise UsageError(
            f"the columns of the scripts cannot be inferred from their records: {error}",
            hint='give scripted a schema, for example schema="word string, n bigint"',
        ) from error
    if not columns:
        raise UsageError(
            "scripts without records need a schema",
            hint='give scripted a schema, for example schema="word string, n bigint"',
        )
    return pa.schema([pa.field(name, column.type) for name, column in columns.items()])


def _chunks(items: list[ScriptItem], schema: pa.Schema) -> tuple[pa.RecordBatch | Mark, ...]:
    """The same script; dicts that follow each other become one batch."""
    chunks: list[pa.RecordBatch | Mark] = []
    rows: list[Mapping[str, Any]] = []
    for item in items:
        if isinstance(item, Mapping):
            rows.append(item)
            continue
        if rows:
            chunks.append(_batch_of(rows, schema))
            rows = []
        if isinstance(item, pa.RecordBatch) and not item.schema.equals(schema):
            raise UsageError(
                f"a batch of a script does not have the schema of the source: the batch has columns "
                f"{item.schema.names}, the source has columns {schema.names}"
            )
        chunks.append(item)
    return (*chunks, _batch_of(rows, schema)) if rows else tuple(chunks)


def _batch_of(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    for row in rows:
        for name in row:
            if name not in schema.names:
                raise unknown_column(str(name), schema.names, argument="a record of the script")
    try:
        return batch_of([dict(row) for row in rows], schema)
    except UsageError as error:
        raise UsageError(
            f"a record of a script does not fit the schema of the source: {error.message}", hint=error.hint
        ) from error


# --- reading ---------------------------------------------------------------------------------------------------------


class Watch(Protocol):
    """What a reader tells its run about the scripts, besides the records."""

    def crash_once(self, place: tuple[int, int, int]) -> None:
        """A reader has come to a crash mark; `place` has the numbers of the source, the script and the item. Does not
        return if the process dies at the mark."""
        ...

    def silent(self, script: tuple[int, int]) -> None:
        """A script that does not end has been read to the point where it falls silent; `script` has the numbers of the
        source and the script."""
        ...


class _Position(msgspec.Struct):
    """Where a reader stands in a script: before row `row` of item `item`."""

    script: int
    item: int = 0
    row: int = 0


class Scripted(Source):
    """What `scripted` returns."""

    def __init__(self, scripts: tuple[tuple[pa.RecordBatch | Mark, ...], ...], schema: pa.Schema, *, end: bool) -> None:
        self.scripts = scripts
        self.ends = end
        self.number = next(_numbers)
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self._schema

    @property
    def is_unbounded(self) -> bool:
        """Whether the source stays silent after its scripts, instead of ending."""
        return not self.ends

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002
        """One split for each script."""
        return [msgspec.msgpack.encode(_Position(script)) for script in range(len(self.scripts))]

    def open(self, splits: Sequence[bytes]) -> ScriptReader:
        """A reader that begins at the positions in `splits`."""
        return ScriptReader(self, [msgspec.msgpack.decode(split, type=_Position) for split in splits])


class ScriptReader(SourceReader):
    """Reads its scripts in turn, a part of an item at a time."""

    def __init__(self, source: Scripted, positions: list[_Position]) -> None:
        self.watch: Watch | None = None
        """None outside of a run."""
        self._source = source
        self._positions = positions
        self._resumes_ms: dict[int, int] = {}
        """By script that stands at a pause: when the pause is over."""
        self._current: int | None = None
        self._held: Collection[Hashable] = ()

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next records of the script that has waited longest."""
        waits_ms: list[int] = []
        for _ in range(len(self._positions)):
            position = self._positions.pop(0)
            is_held = position.script in self._held
            polled = Pause(HELD_MS) if is_held else self._read(position, max_rows, now_ms)
            if polled is None:
                continue
            self._positions.append(position)
            if not isinstance(polled, Pause):
                self._current = position.script
                return polled
            waits_ms.append(polled.wait_ms)
        return Pause(min(waits_ms)) if waits_ms else End()

    @property
    def holds_splits(self) -> bool:
        """Always."""
        return True

    def hold(self, splits: Collection[Hashable]) -> None:
        """Give no records of these scripts until the next call."""
        self._held = splits

    def snapshot(self) -> list[bytes]:
        """The positions in the scripts that have not ended. A script that falls silent instead of ending never ends."""
        return [msgspec.msgpack.encode(p) for p in self._positions if not self._source.ends or not self._is_read(p)]

    def progress(self) -> SplitProgress:
        """The scripts that have not ended are open. Open scripts that are at a pause, or silent, are not ready."""
        going_on = {
            p.script: self._is_read(p) for p in self._positions if not self._source.ends or not self._is_read(p)
        }
        ready = [script for script, is_read in going_on.items() if not is_read and script not in self._resumes_ms]
        return SplitProgress(current=self._current, open=going_on.keys(), ready=ready)

    def _is_read(self, position: _Position) -> bool:
        return position.item == len(self._source.scripts[position.script])

    def _read(self, position: _Position, max_rows: int, now_ms: int) -> pa.RecordBatch | Pause | None:
        """The next records of one script; None if the script has ended."""
        source = self._source
        while not self._is_read(position):
            item = source.scripts[position.script][position.item]
            if isinstance(item, Mark):
                wait_ms = self._obey(position, item, now_ms)
                if wait_ms > 0:
                    return Pause(wait_ms)
                position.item += 1
                continue
            part = item.slice(position.row, max_rows)
            position.row += part.num_rows
            if position.row == item.num_rows:
                position.item, position.row = position.item + 1, 0
            if part.num_rows:
                return part
        if source.ends:
            return None
        if self.watch is not None:
            self.watch.silent((source.number, position.script))
        return Pause(SILENCE_MS)

    def _obey(self, position: _Position, mark: Mark, now_ms: int) -> int:
        """For how many milliseconds a mark still makes the script wait; 0 or less if the script may go on."""
        if mark.pause_ms is None:
            if self.watch is None:
                raise UsageError("a script with crash() in it can be read in penstock.testing.run only")
            self.watch.crash_once((self._source.number, position.script, position.item))
            return 0
        wait_ms = self._resumes_ms.setdefault(position.script, now_ms + mark.pause_ms) - now_ms
        if wait_ms <= 0:
            del self._resumes_ms[position.script]
        return wait_ms
