"""Sources over rows of the program itself: a list that travels with the program, or a function that gives rows.

The rows of a list are cut into one split for each subtask; the position of a split is the number of its next row. A
digest of all rows is in each split, so that a program whose list was changed does not go on in the middle of other
rows.

The rows of a function are one split. The function runs on a thread, since it may block. After a failure the function is
called again, and as many rows are left out as were handed on. This is right only if the function gives the same rows in
the same order. So the last row that was handed on is compared, and a function that gives another row is refused.
"""

from __future__ import annotations

import inspect
import itertools
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
import xxhash

from penstock.api.callables import check_callable
from penstock.api.connector import HELD_MS, End, Pause, Polled, Source, SourceReader, SplitProgress, UserCodeRaised
from penstock.api.fetching import WAIT_MS, Fetcher, digest_of
from penstock.api.given_rows import batch_of, inferred_schema
from penstock.api.saved_pieces import decoded_piece
from penstock.core.errors import StreamError, UsageError
from penstock.sql.schemas import SchemaLike, as_schema

Rows = Iterable[Any] | Callable[[], Iterable[Any]]
"""What `from_iterable` takes: rows, or a function that gives rows."""

_NAME = "iterable"
_SKIP_ROWS = 1024
"""After so many rows that are left out, the thread looks whether it is to end."""


def iterable_source(given: Rows, schema: SchemaLike | None) -> Source:
    """The source over rows, or over what a function gives. Raises `UsageError` if the rows do not fit."""
    known = None if schema is None else as_schema(schema, argument="schema")
    if isinstance(given, str | bytes | Mapping | pa.Table | pa.RecordBatch) or hasattr(given, "columns"):
        raise UsageError(
            f"from_iterable takes rows, and got a {type(given).__name__}",
            hint="give a list of rows, such as [{'word': 'to'}]; of an Arrow table table.to_pylist(); for a DataFrame "
            "of Spark there is from_dataframe",
        )
    if isinstance(given, Iterable):
        rows = list(given)
        found = inferred_schema(rows) if known is None else known
        return ListedRows(batch_of(rows, found))
    check_callable(given, "from_iterable")
    if known is None:
        raise UsageError(
            "from_iterable with a function needs a schema: the function is called only when the job runs",
            hint="for example from_iterable(lines, schema='line string')",
        )
    _check_arguments(given)
    try:
        pickled = cloudpickle.dumps(given)
    except Exception as error:
        raise UsageError(
            f"the function of from_iterable cannot be sent to the workers: {error}",
            hint="open files, connections and the like inside the function",
        ) from error
    return CalledRows(bytes(pickled), known)


def _check_arguments(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some functions that are not written in Python do not tell their arguments.
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"the function of from_iterable is called without arguments, and this function takes {signature}",
            hint="give the arguments with functools.partial, or in a lambda",
        ) from error


# --- a list ----------------------------------------------------------------------------------------------------------


class _Span(msgspec.Struct, frozen=True, array_like=True):
    """Rows `position` up to, not including, `stop` are left to be read."""

    position: int
    stop: int
    digest: int
    """Of all rows of the source."""


class ListedRows(Source):
    """The source over a list of rows. Neither splits nor positions are pickled; the source leaves nothing outside the
    job's checkpoints, and finds no more rows later."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._digest = _digest_of_all(rows)

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "a list of rows"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return _NAME

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._rows.schema

    def splits(self, parallelism: int) -> list[bytes]:
        """One for each subtask, if there are enough rows; neighbours in the list stay together."""
        count = self._rows.num_rows
        borders = [count * number // parallelism for number in range(parallelism + 1)]
        spans = [_Span(first, stop, self._digest) for first, stop in itertools.pairwise(borders) if first < stop]
        return [msgspec.msgpack.encode(span) for span in spans]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits. Raises `UsageError` if the splits are of other rows."""
        spans = [decoded_piece(split, _Span, what="the position of from_iterable") for split in splits]
        for span in spans:
            if span.digest != self._digest or not 0 <= span.position <= span.stop <= self._rows.num_rows:
                raise UsageError(
                    f"the rows of from_iterable are not the rows that the job began with: rows {span.position} to "
                    f"{span.stop - 1} of the earlier rows are left to be read",
                    hint="give the earlier rows again; or start over with fresh=True; or give the source another name",
                )
        return _ListReader(self._rows, spans)


class _ListReader(SourceReader):
    """Reads its spans one after another. Each span has an event time of its own."""

    def __init__(self, rows: pa.RecordBatch, spans: Iterable[_Span]) -> None:
        self._rows = rows
        self._left = deque(span for span in spans if span.position < span.stop)
        self._current: Hashable = None
        self._held: Collection[Hashable] = ()

    @property
    def holds_splits(self) -> bool:
        """Always."""
        return True

    def hold(self, splits: Collection[Hashable]) -> None:
        """Give no rows of these spans until the next call."""
        self._held = splits

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # the rows are there at once
        """The next rows of the first span that is not held."""
        if not self._left:
            return End()
        for _ in range(len(self._left)):
            if self._left[0].stop not in self._held:
                break
            self._left.rotate(-1)
        else:
            return Pause(HELD_MS)
        span = self._left.popleft()
        count = min(max_rows, span.stop - span.position)
        # The end of a span never changes, and no two spans have the same end.
        self._current = span.stop
        if span.position + count < span.stop:
            self._left.appendleft(msgspec.structs.replace(span, position=span.position + count))
        return self._rows.slice(span.position, count)

    def snapshot(self) -> list[bytes]:
        """The spans with rows left."""
        return [msgspec.msgpack.encode(span) for span in self._left]

    def progress(self) -> SplitProgress:
        """Every span has rows at any time."""
        left = [span.stop for span in self._left]
        return SplitProgress(current=self._current, open=left, ready=left)


def _digest_of_all(rows: pa.RecordBatch) -> int:
    found = xxhash.xxh3_64(f"{rows.num_rows} {rows.schema}".encode())
    for column in rows.columns:
        for buffer in column.buffers():
            found.update(b"-" if buffer is None else buffer)
    return found.intdigest()


# --- a function ------------------------------------------------------------------------------------------------------


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """How many rows of the function were handed on."""

    read: int = 0
    last: int | None = None
    """A digest of the last row that was handed on."""


class CalledRows(Source):
    """The source over what a function gives. The function travels pickled in the program; splits and positions are not
    pickled. The source leaves nothing outside the job's checkpoints, and finds no more rows later."""

    def __init__(self, function: bytes, schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "a function that gives rows"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return _NAME

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._schema

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002  # a function is read by a single subtask
        """One split."""
        return [msgspec.msgpack.encode(_Place())]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader of what the function gives, or of nothing."""
        places = [decoded_piece(split, _Place, what="the position of from_iterable") for split in splits]
        return _FunctionReader(self._function, self._schema, places[0] if places else None)


class _FunctionReader(SourceReader):
    """Hands on the rows that have come. All rows are of one split, so they share one event time."""

    def __init__(self, function: bytes, schema: pa.Schema, place: _Place | None) -> None:
        self._function = function
        self._schema = schema
        self._place = place
        self._last: pa.RecordBatch | None = None
        self._is_closed = False
        self._fetcher = None if place is None else Fetcher(lambda: self._rows(place), name=_NAME)

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002  # the function has a clock of its own
        """The rows that the function has given and that were not handed on."""
        fetcher, place = self._fetcher, self._place
        if fetcher is None or place is None:
            return End()
        # Rows may come between the two looks: so the end is looked at first.
        has_ended = fetcher.has_ended
        rows = fetcher.take(max_rows)
        if isinstance(rows, list):
            batch = batch_of(rows, self._schema, first=place.read)
            self._place = _Place(place.read + len(rows), place.last)
            self._last = batch.slice(len(rows) - 1)
            return batch
        if not has_ended:
            return Pause(WAIT_MS)
        _raise(fetcher.error)
        self._place, self._fetcher = None, None
        return End()

    def snapshot(self) -> list[bytes]:
        """The split with its position; nothing if the function has ended."""
        if self._place is None:
            return []
        if self._last is not None:
            self._place, self._last = _Place(self._place.read, digest_of(self._last)), None
        return [msgspec.msgpack.encode(self._place)]

    def close(self) -> None:
        """Stop the thread at the next row."""
        self._is_closed = True
        if self._fetcher is not None:
            self._fetcher.close()

    def _rows(self, place: _Place) -> Iterable[Any]:
        """The rows behind a position. Runs on the thread of the fetcher."""
        given = cloudpickle.loads(self._function)()
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise UsageError(
                f"the function of from_iterable returned a {type(given).__name__}",
                hint="return an iterator of rows, or write the function with yield",
            )
        iterator = iter(given)
        if place.read:
            self._leave_out(iterator, place)
        return iterator

    def _leave_out(self, iterator: Iterator[Any], place: _Place) -> None:
        """Read the rows that were handed on before, and compare the last of them. Raises `UsageError`."""
        read = 0
        rows: list[Any] = []
        while read < place.read:
            rows = list(itertools.islice(iterator, min(_SKIP_ROWS, place.read - read)))
            if not rows:
                raise _differs(place, f"the function now ends after {read} rows")
            if self._is_closed:
                return
            read += len(rows)
        if digest_of(batch_of(rows[-1:], self._schema, first=read - 1)) != place.last:
            raise _differs(place, f"row {read - 1} differs now")


def _differs(place: _Place, how: str) -> UsageError:
    return UsageError(
        f"the function of from_iterable did not give the same rows again: {place.read} rows were handed on before the "
        f"failure, and {how}",
        hint="the function must give the same rows in the same order whenever it is called; rows that cannot be given "
        "again belong into files or a log first",
    )


def _raise(error: BaseException | None) -> None:
    if isinstance(error, StreamError):
        raise error
    if error is not None:
        raise UserCodeRaised("the function of from_iterable") from error
