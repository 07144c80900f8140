"""Asks another system about the keys of a batch, and puts the answers beside the records.

Each key is asked about once for all its records, and the answer is kept for a while. The answers of a subtask are its
own, and are in no snapshot: after a restore keys are asked about again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.api.aggregate_kinds.base import normal_keys
from penstock.api.async_functions import AsyncFunction, call_of, closing_of, opening_of
from penstock.api.functions import FunctionContext
from penstock.core.errors import UsageError

Key = tuple[Any, ...]

_NAN = "NaN"
"""Stands for NaN in a key: NaN is one key, and does not equal itself in Python."""


class Answers:
    """The newest answers, by key."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._found: OrderedDict[Key, tuple[float, list[dict[str, Any]]]] = OrderedDict()

    def get(self, key: Key, now: float) -> list[dict[str, Any]] | None:
        """The answer about a key; None if it is not known, or too old."""
        found = self._found.get(key)
        if found is None or now >= found[0]:
            return None
        self._found.move_to_end(key)
        return found[1]

    def put(self, key: Key, rows: list[dict[str, Any]], now: float) -> None:
        """Keep an answer. The answers that were asked for least lately go."""
        self._found[key] = (now + self._seconds, rows)
        self._found.move_to_end(key)
        while len(self._found) > self._most:
            self._found.popitem(last=False)


class Lookup(AsyncFunction):
    """Puts answers beside the records of a batch."""

    def __init__(  # noqa: PLR0913  # one keyword per choice
        self,
        function: Any,
        *,
        keys: tuple[str, ...],
        how: str,
        answers: pa.Schema,
        schema: pa.Schema,
        cache_rows: int,
        cache_s: float,
        concurrency: int,
    ) -> None:
        """`answers` are the columns of an answer, and `schema` are the columns of the results."""
        self._function = function
        self._keys = keys
        self._how = how
        self._columns = answers
        self._schema = schema
        self._cache = (cache_rows, cache_s)
        self._concurrency = concurrency

    async def open(self, context: FunctionContext) -> None:
        """Open the function of the user."""
        self._answers = Answers(*self._cache)
        self._asked: dict[Key, asyncio.Future[list[dict[str, Any]]]] = {}
        self._gate = asyncio.Semaphore(self._concurrency)
        opening = opening_of(self._function, context)
        if opening is not None:
            await opening()

    async def close(self) -> None:
        """Cancel the calls that no batch waits for any more, and close the function of the user."""
        left = list(self._asked.values())
        for call in left:
            call.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        closing = closing_of(self._function)
        if closing is not None:
            await closing()

    async def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The results of a batch."""
        columns: list[Any] = [normal_keys(batch.column(key)) for key in self._keys]
        keyed = pa.table(columns, names=list(self._keys))
        # A null key matches nothing, and nobody is asked about it.
        asked = keyed.drop_null().group_by(list(self._keys)).aggregate([]).select(list(self._keys))
        found = await asyncio.gather(*(self._answer(row) for row in asked.to_pylist()))
        counts = [len(rows) for rows in found]
        answers = self._table([row for rows in found for row in rows])
        left, right = _matches(keyed, asked, counts, how=self._how)
        made = [batch.column(name).take(left) for name in batch.schema.names]
        beside = {name: answers.column(name).take(right) for name in self._columns.names}
        own = dict(zip(batch.schema.names, made, strict=True))
        arrays = [own[field.name] if field.name in own else beside[field.name] for field in self._schema]
        return pa.RecordBatch.from_arrays([_one(array) for array in arrays], schema=self._schema)

    async def _answer(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that the other system has for a key."""
        key = tuple(_NAN if value != value else value for value in row.values())  # NaN
        known = self._answers.get(key, _now())
        if known is not None:
            return known
        under_way = self._asked.get(key)
        if under_way is None:
            # Several batches may ask about the same key: the key is asked about once.
            under_way = self._asked[key] = asyncio.ensure_future(self._ask(row))
            under_way.add_done_callback(lambda _: self._asked.pop(key, None))
        rows = await asyncio.shield(under_way)
        self._answers.put(key, rows, _now())
        return rows

    async def _ask(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        async with self._gate:
            answer = await call_of(self._function)(row)
        if answer is None:
            return []
        rows = [answer] if isinstance(answer, Mapping) else list(answer)
        for each in rows:
            if not isinstance(each, Mapping):
                raise UsageError(
                    f"lookup: the function returned {each!r}", hint="return a dict, a list of dicts or None"
                )
        return [dict(each) for each in rows]

    def _table(self, rows: list[dict[str, Any]]) -> pa.Table:
        """The answers as columns."""
        names = self._columns.names
        for row in rows:
            missing = [name for name in names if name not in row]
            if missing:
                raise UsageError(
                    f"lookup: the function returned {row!r}, which has no {missing[0]!r}",
                    hint=f"return a dict with {', '.join(names)}",
                )
        return pa.Table.from_pylist([{name: row[name] for name in names} for row in rows], schema=self._columns)


def _matches(keyed: pa.Table, asked: pa.Table, counts: Iterable[int], *, how: str) -> tuple[Any, Any]:
    """The number of the record and the number of the answer of each result, in the order of the records."""
    # Not imported at the top: a slot that needs no Polars starts sooner without Polars.
    import polars as pl

    keys = asked.schema.names
    answers = pl.DataFrame(_with_bits(asked)).with_columns(pl.Series("__count", list(counts), pl.UInt32))
    rows = pl.DataFrame(_with_bits(keyed)).with_row_index("__row")
    spread = answers.with_columns(__number=pl.col("__count").cum_sum() - pl.col("__count")).filter(
        pl.col("__count") > 0
    )
    spread = spread.with_columns(
        __number=pl.int_ranges(pl.col("__number"), pl.col("__number") + pl.col("__count"))
    ).explode("__number")
    kinds: dict[str, Any] = {"inner": "inner", "left": "left", "semi": "semi", "anti": "anti"}
    joined = rows.join(spread, on=keys, how=kinds[how], maintain_order="left")
    numbers = joined.get_column("__number").to_arrow() if "__number" in joined.columns else pa.nulls(joined.height)
    return joined.get_column("__row").to_arrow(), numbers.cast(pa.int64())


def _with_bits(keys: pa.Table) -> pa.Table:
    """The keys with the bits of floats in place of floats: for Polars NaN does not equal NaN."""
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    columns: list[Any] = [_one(column) for column in keys.columns]
    return pa.table([column.view(bits.get(column.type, column.type)) for column in columns], names=keys.schema.names)


def _one(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _now() -> float:
    return asyncio.get_running_loop().time()
