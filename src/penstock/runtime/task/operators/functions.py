"""Functions of the user's program without state, over batches or row by row."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.steps import MapBatchesStep, MapStep
from penstock.core.errors import UsageError
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output
from penstock.runtime.task.operators.rows import SOME_ROWS, Row, batch_of, rows_of
from penstock.runtime.task.operators.user_code import (
    Wrong,
    describe,
    describe_columns,
    guarded,
    user_error,
    wrong_result,
)
from penstock.runtime.task.slices import MOST_ROWS, Steps, Work
from penstock.sql.column_values import check_objects

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl


class MapBatchesOperator(Operator):
    """Calls a function with every batch. The function returns a batch, several batches or nothing."""

    def __init__(self, step: MapBatchesStep) -> None:
        self._step = step
        self._to_user, self._from_user = conversions(step.kind, step.schema)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on what the function makes of the batch, in exactly the step's schema."""
        if batch.num_rows == 0:
            return None
        given = self._to_user(batch)
        wrong = wrong_result(self.context)
        results = results_of(lambda: self._step.function(given), self.context)
        return Work.begin(emitted(self, (made for result in results for made in self._from_user(result, wrong))))


class MapOperator(Operator):
    """Calls a function with every row. The function returns a row or, in a flat step, any number of rows. A row is a
    dict of Python values."""

    def __init__(self, step: MapStep) -> None:
        self._step = step

    @property
    def is_row_wise(self) -> bool:
        """True: the operator calls a function for every row."""
        return True

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start."""
        super().open(context, output)
        self._wrong = wrong_result(context)

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on the rows that the function makes of the batch's rows."""
        if batch.num_rows == 0:
            return None
        function, rows = self._step.function, rows_of(batch)
        if self._step.flat:
            made = (batch_of(piece, self._step.schema, self._wrong) for piece in self._flattened(rows))
            return Work.begin(emitted(self, made))
        self.output.emit(
            batch_of(guarded(lambda: [function(row) for row in rows], self.context), self._step.schema, self._wrong)
        )
        return None

    def _flattened(self, rows: list[Row]) -> Iterator[list[Any]]:
        """The rows that the function makes, in pieces that are not too large and do not take too long.

        Calls and results are chained without a step of Python code per row: a function that yields costs little more
        than a function that returns a list."""
        slice_, made = self.slice, list[Any]()
        given, ends = iter(rows), _End()
        flat = chain.from_iterable(map(self._step.function, chain(given, ends)))
        left = len(rows)
        try:
            while True:
                before = len(made)
                made.extend(islice(flat, SOME_ROWS))
                if len(made) - before < SOME_ROWS:
                    break
                called, left = left - length_hint(given), length_hint(given)
                # Only a call that makes many rows is cut: a batch of calls is cut before it comes here.
                if len(made) >= MOST_ROWS or (called <= 1 and slice_.spend(SOME_ROWS)):
                    yield made
                    made = []
            ends.check()
        except Exception as error:
            raise user_error(error, self.context) from error
        if made:
            yield made


class _End:
    """An iterator over nothing, which knows whether it was reached."""

    def __init__(self) -> None:
        self._is_reached = False

    def __iter__(self) -> _End:
        return self

    def __next__(self) -> Any:
        self._is_reached = True
        raise StopIteration

    def check(self) -> None:
        """Raise `RuntimeError` unless the end was reached: the function has raised `StopIteration`, and the rows behind
        that call must not be left out. Python has the same rule for generators."""
        if not self._is_reached:
            raise RuntimeError("the function raised StopIteration")


_NOTHING_MORE = object()


def emitted(operator: Operator, batches: Iterator[pa.RecordBatch]) -> Steps:
    """Hand on the batches that an operator makes of one batch, in slices. A snapshot waits for the last of these
    batches: batches that have not been handed on are in no state."""
    is_first = True
    for batch in batches:
        if not is_first and operator.slice.is_over:
            yield False
        if batch.num_rows:
            operator.output.emit(batch)
        is_first = False


def results_of(call: Callable[[], Any], context: OperatorContext) -> Iterator[Any]:
    """The results of a user's function, one at a time. A generator runs only as far as the next result needs."""
    returned = guarded(call, context)
    if returned is None:
        return
    if not _is_several(returned):
        yield returned
        return
    iterator = iter(returned)
    while (result := guarded(lambda: next(iterator, _NOTHING_MORE), context)) is not _NOTHING_MORE:
        yield result


def _is_several(result: Any) -> bool:
    """Whether a result is a collection of results. Frames and tables can be iterated, too, but each is a single
    result."""
    return isinstance(result, Iterable) and (isinstance(result, list | tuple | Iterator))


def conversions(
    kind: str, schema: pa.Schema
) -> tuple[Callable[[pa.RecordBatch], Any], Callable[[Any, Wrong], list[pa.RecordBatch]]]:
    """How batches are handed to a function that takes batches of `kind`, and how its results become batches in exactly
    `schema`."""
    match kind:
        case "arrow":
            return lambda batch: batch, lambda result, wrong: from_arrow(result, schema, wrong)
        case "table":
            return lambda batch: pa.Table.from_batches([batch]), lambda result, wrong: from_arrow(result, schema, wrong)
        case "polars":
            import polars as pl

            expected = pl.DataFrame(schema.empty_table()).schema
            return pl.DataFrame, lambda result, wrong: _from_polars(result, schema, expected, wrong)
        case "pandas":
            _require_pandas()
            return lambda batch: batch.to_pandas(), lambda result, wrong: _from_pandas(result, schema, wrong)
        case _:
            raise UsageError(
                f"map_batches cannot give a function batches of kind {kind!r}",
                hint="use 'arrow', 'table', 'polars' or 'pandas'",
            )


def _require_pandas() -> None:
    try:
        importlib.import_module("pandas")
    except ImportError as error:
        raise UsageError(
            "map_batches with kind 'pandas' needs pandas, which this process cannot import",
            hint="install pandas where Spark's Python workers run, or use kind 'arrow' or 'polars'",
        ) from error


def from_arrow(result: Any, schema: pa.Schema, wrong: Wrong) -> list[pa.RecordBatch]:
    """The result of a function over Arrow batches, as batches in exactly `schema`. If the result does not fit, raises
    the error that `wrong` makes."""
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise wrong(f"expected a pyarrow RecordBatch or Table; got {describe(result)}")
    if sorted(result.schema.names) != sorted(schema.names):
        raise wrong(f"expected columns {describe_columns(schema)}; got {describe_columns(result.schema)}")
    ordered = result.select(schema.names)
    if [field.type for field in ordered.schema] != [field.type for field in schema]:
        raise wrong(f"expected columns {describe_columns(schema)}; got {describe_columns(result.schema)}")
    if isinstance(ordered, pa.RecordBatch):
        return [pa.RecordBatch.from_arrays(ordered.columns, schema=schema)]
    # The cast changes no type; it takes the field's metadata and nullability from the schema.
    return ordered.cast(schema).combine_chunks().to_batches()


def _from_polars(result: Any, schema: pa.Schema, expected: pl.Schema, wrong: Wrong) -> list[pa.RecordBatch]:
    import polars as pl

    if not isinstance(result, pl.DataFrame):
        raise wrong(f"expected a polars DataFrame; got {describe(result)}")
    if dict(result.schema) != dict(expected):
        raise wrong(f"expected columns {_polars_columns(expected)}; got {_polars_columns(result.schema)}")
    return result.select(schema.names).to_arrow().cast(schema).combine_chunks().to_batches()


def _from_pandas(result: Any, schema: pa.Schema, wrong: Wrong) -> list[pa.RecordBatch]:
    pandas = importlib.import_module("pandas")
    if not isinstance(result, pandas.DataFrame):
        raise wrong(f"expected a pandas DataFrame; got {describe(result)}")
    names = [str(name) for name in result.columns]
    if sorted(names) != sorted(schema.names):
        raise wrong(f"expected columns {describe_columns(schema)}; got {', '.join(names)}")
    for field in schema:
        try:
            check_objects(result[field.name], field.type)
        except ValueError as error:
            raise wrong(f"column {field.name!r} must be of type {field.type}; {error}") from error
    try:
        return [pa.RecordBatch.from_pandas(result, schema=schema, preserve_index=False)]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise wrong(f"expected columns {describe_columns(schema)}; {error}") from error


def _polars_columns(schema: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in schema.items())
