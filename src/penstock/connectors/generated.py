"""Rows that a function makes from their numbers: for tries, for tests and for load.

ps.generate(lambda first, count: {"n": range(first, first + count)}, schema="n bigint", rate=1000)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa

from penstock.api.callables import check_callable
from penstock.api.connector import Source, SourceReader, UserCodeRaised
from penstock.api.fetching import digest_of
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.stripes import Stripe, StripedReader
from penstock.core.errors import StreamError, UsageError
from penstock.sql.column_values import REFUSED, array_of, first_misfit
from penstock.sql.schemas import SchemaLike, as_schema

BLOCK_ROWS = 65_536
"""How many rows follow each other in one split, if there is no rate."""
SPLITS = 8
"""There are at least so many splits, so that a job can be given more subtasks later."""

Maker = Callable[[int, int], Any]
"""`function(first, count)`."""


def generate(function: Maker, *, schema: SchemaLike, rate: int | None = None, rows: int | None = None) -> GeneratedRows:
    """Rows that a function makes from their numbers. The numbers 0, 1, 2, ... are dealt out to the subtasks.

    `function(first, count)` returns the rows with the numbers `first` to `first + count - 1`: a dict of columns (lists
    or NumPy arrays), an Arrow table or batch, or a Polars or pandas DataFrame. The function must give the same row for
    a number whenever it is called, and whatever `first` and `count` are: after a failure rows are made again. The last
    row of each split is compared then, and a function that gives another row is refused.

        >>> from penstock.testing import collect, run
        >>> squares = generate(lambda first, count: {"n": [n * n for n in range(first, first + count)]},
        ...                    schema="n bigint", rows=4)
        >>> sorted(row["n"] for row in run(lambda env: env.read(squares).write(collect())))
        [0, 1, 4, 9]

    Args:
        function: makes rows. It runs in every slot, on its loop: it must not block.
        schema: the columns.
        rate: how many rows come in a second, over all subtasks; None: as fast as the job can take them. After a restart
            the rows are counted from the restart on: rows that were not made meanwhile are not made up for.
        rows: how many rows there are; None: rows come until the job is stopped.

    """
    check_callable(function, "generate")
    columns = as_schema(schema, argument="schema")
    for argument, value, least in (("rate", rate, 1), ("rows", rows, 0)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"{argument} is {value!r}; give a whole number from {least}, or None for no limit")
    try:
        pickled = bytes(cloudpickle.dumps(function))
    except Exception as error:
        raise UsageError(
            f"the function of ps.generate cannot be sent to the workers: {error}",
            hint="everything that the function uses from outside is sent with the function",
        ) from error
    if rows != 0:
        _try(function, columns)
    return GeneratedRows(pickled, columns, rate=rate, rows=rows)


def _try(function: Maker, schema: pa.Schema) -> None:
    """Make the first row. Raises `UsageError` if that cannot be."""
    try:
        batch_of_result(function(0, 1), schema, first=0, count=1)
    except StreamError:
        raise
    except Exception as error:
        raise UsageError(
            f"the function of ps.generate raised {type(error).__name__} for function(0, 1), the first row: {error}",
            hint="the function is called as function(first, count), and returns count rows",
        ) from error


class _Part(Stripe, frozen=True, array_like=True):
    last: int | None = None
    """A digest of the last row before the position."""
    last_number: int = -1
    """The number of that row."""


class GeneratedRows(Source):
    """The source that `generate` makes. The function travels pickled in the program; splits and positions are not
    pickled. The source leaves nothing outside the job's checkpoints, and finds no more rows later."""

    def __init__(self, function: bytes, schema: pa.Schema, *, rate: int | None, rows: int | None) -> None:
        self._function = function
        self._schema = schema
        self._rate = rate
        self._rows = rows

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "generated rows"

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "generate"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._schema

    @property
    def is_unbounded(self) -> bool:
        """Whether rows are made without end: the user gave no number of rows."""
        return self._rows is None

    def splits(self, parallelism: int) -> list[bytes]:
        """Blocks of numbers in turn. With a rate, a block lasts about a millisecond, so that splits stay together."""
        count = max(SPLITS, parallelism)
        block = BLOCK_ROWS if self._rate is None else min(max(self._rate // 1000, 1), BLOCK_ROWS)
        if self._rows is not None:
            # Few rows are shared by all subtasks, too.
            block = min(block, max(1, -(-self._rows // count)))
        parts = [_Part(index, count, block, index * block, self._rows) for index in range(count)]
        return [msgspec.msgpack.encode(part) for part in parts if part.end is None or part.position < part.end]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        parts = [decoded_piece(split, _Part, what="a split of generated rows") for split in splits]
        return _Reader(cloudpickle.loads(self._function), self._schema, parts, self._rate)


class _Reader(StripedReader[_Part]):
    """Makes rows in the order of their numbers. All rows share one event time, which should grow with the numbers."""

    def __init__(self, function: Maker, schema: pa.Schema, parts: list[_Part], rate: int | None) -> None:
        super().__init__(parts, rate)
        self._function = function
        self._schema = schema
        self._last: dict[int, tuple[int, pa.RecordBatch]] = {}
        """The last row of each split, with its number."""
        self._unchecked = {part.index: part for part in parts if part.last is not None}

    def rows(self, split: _Part, stop: int) -> pa.RecordBatch:
        """The rows from the position of the split up to `stop`."""
        earlier = self._unchecked.pop(split.index, None)
        if earlier is not None and digest_of(self._made(earlier.last_number, 1)) != earlier.last:
            raise UsageError(
                f"the function of ps.generate did not give the same row again: row {earlier.last_number} differs now",
                hint="the function must give the same row for a number whenever it is called: draw random numbers from "
                "a generator that is made from the number",
            )
        batch = self._made(split.position, stop - split.position)
        self._last[split.index] = (stop - 1, batch.slice(batch.num_rows - 1))
        return batch

    def snapshot(self) -> list[bytes]:
        """The unread splits, with digests of their last rows."""
        return [msgspec.msgpack.encode(self._with_last(part)) for part in self.unread]

    def _with_last(self, part: _Part) -> _Part:
        if part.index not in self._last:
            return part
        number, row = self._last[part.index]
        return msgspec.structs.replace(part, last=digest_of(row), last_number=number)

    def _made(self, first: int, count: int) -> pa.RecordBatch:
        try:
            result = self._function(first, count)
        except (StreamError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise UserCodeRaised(f"the function of ps.generate for function({first}, {count})") from error
        return batch_of_result(result, self._schema, first=first, count=count)


# --- what the function returns ---------------------------------------------------------------------------------------


def batch_of_result(result: Any, schema: pa.Schema, *, first: int, count: int) -> pa.RecordBatch:
    """What the function returned for `function(first, count)`, as a batch of the schema. Raises `UsageError`."""
    called = f"the function of ps.generate returned, for function({first}, {count}),"
    columns = _columns_of(result)
    if columns is None:
        raise UsageError(
            f"{called} a {type(result).__name__}",
            hint="return a dict of columns, an Arrow table or batch, or a Polars or pandas DataFrame",
        )
    if set(columns) != set(schema.names):
        raise UsageError(
            f"{called} the columns {', '.join(map(str, columns)) or '-'}; the schema has {', '.join(schema.names)}",
            hint="return exactly the columns of the schema",
        )
    arrays: list[Any] = []
    for field in schema:
        given = columns[field.name]
        try:
            array = _as_array(given, field.type)
        except REFUSED as error:
            found = first_misfit(given, field.type) if isinstance(given, list | tuple) else None
            reason = error if found is None else f"value {found[0]} is {found[1]}: {found[2]}"
            raise UsageError(
                f"{called} a column {field.name!r} that does not fit the type {field.type}: {reason}",
                hint="mend the function, or give the column another type in the schema",
            ) from error
        if len(array) != count:
            raise UsageError(f"{called} {len(array)} values in column {field.name!r}; there must be {count}")
        if array.null_count and not field.nullable:
            raise UsageError(f"{called} nulls in column {field.name!r}, which cannot be null")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_of(result: Any) -> dict[str, Any] | None:
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, pa.RecordBatch | pa.Table):
        return dict(zip(result.schema.names, result.columns, strict=True))
    # Polars and pandas are imported only by functions that use them.
    library = type(result).__module__.partition(".")[0]
    if library == "polars" and hasattr(result, "to_arrow") and hasattr(result, "columns"):
        return _columns_of(result.to_arrow())
    if library == "pandas" and hasattr(result, "columns"):
        return _columns_of(pa.Table.from_pandas(result, preserve_index=False))
    return None


def _as_array(given: Any, kind: pa.DataType) -> Any:
    if isinstance(given, range) or str(getattr(given, "dtype", "")) == "object":
        given = list(given)
    if isinstance(given, list | tuple):
        given = array_of(given, kind)
    elif not isinstance(given, pa.Array | pa.ChunkedArray):
        given = pa.array(given)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    return given if given.type == kind else given.cast(kind)
