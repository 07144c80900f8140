"""Functions of the user's program, over batches or row by row.

This is the boundary to user code: whatever it raises, and whatever it returns that is not what the step promised,
becomes a `UserCodeError` that names the operator and the subtask.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.steps import MapBatchesStep, MapStep
from penstock.core.errors import UsageError, UserCodeError
from penstock.runtime.operators.base import Operator, OperatorContext


class MapBatchesOperator(Operator):
    """A function from batch to batch, to nothing, or to several."""

    def __init__(self, step: MapBatchesStep) -> None:
        self._step = step
        self._to_user, self._from_user = _conversions(step)

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on what the function makes of the batch, in exactly the step's schema."""
        if batch.num_rows == 0:
            return
        given = self._to_user(batch)
        for result in self._results(given):
            for made in self._from_user(result, self._wrong):
                if made.num_rows:
                    self.output.emit(made)

    def _results(self, given: Any) -> Iterator[Any]:
        """Each result of the function, by itself; a generator runs as far as it must for the next one."""
        with_results: Any = _guarded(lambda: self._step.function(given), self.context)
        if with_results is None:
            return
        if not _is_several(with_results):
            yield with_results
            return
        iterator = iter(with_results)
        while (result := _guarded(lambda: next(iterator, _NOTHING_MORE), self.context)) is not _NOTHING_MORE:
            yield result

    def _wrong(self, what: str) -> UserCodeError:
        return _error(self.context, f"TypeError: {what}")


class MapOperator(Operator):
    """A function from row to row, or to any number of rows. A row is a dict of Python values."""

    def __init__(self, step: MapStep) -> None:
        self._step = step

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on the rows that the function makes of the batch's rows."""
        if batch.num_rows == 0:
            return
        function = self._step.function
        rows = batch.to_pylist()
        if self._step.flat:
            made = _guarded(lambda: [new for row in rows for new in function(row)], self.context)
        else:
            made = _guarded(lambda: [function(row) for row in rows], self.context)
        names = self._step.schema.names
        expected = frozenset(names)
        for row in made:
            if not isinstance(row, Mapping):
                raise self._wrong(f"expected a dict with {', '.join(names)}; got {_describe(row)}")
            if row.keys() != expected:
                raise self._wrong(f"expected a dict with {', '.join(names)}; got one with {', '.join(map(str, row))}")
        if not made:
            return
        try:
            result = pa.RecordBatch.from_pylist(made, schema=self._step.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise self._wrong(f"expected rows of {_columns(self._step.schema)}; {error}") from error
        self.output.emit(result)

    def _wrong(self, what: str) -> UserCodeError:
        return _error(self.context, f"TypeError: {what}")


_NOTHING_MORE = object()

Wrong = Callable[[str], UserCodeError]


def _guarded(call: Callable[[], Any], context: OperatorContext) -> Any:
    """Run user code; its exceptions come out as `UserCodeError` with its own part of the traceback."""
    try:
        return call()
    except Exception as error:
        inner = error.__traceback__
        while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
            inner = inner.tb_next
        raise _error(context, "".join(traceback.format_exception(type(error), error, inner))) from error


def _error(context: OperatorContext, text: str) -> UserCodeError:
    return UserCodeError(operator=context.name, subtask=context.task.subtask, traceback_text=text)


def _is_several(result: Any) -> bool:
    """Whether a result is a collection of results. Frames and tables can be iterated too, but are one."""
    return isinstance(result, Iterable) and (isinstance(result, list | tuple | Iterator))


def _conversions(
    step: MapBatchesStep,
) -> tuple[Callable[[pa.RecordBatch], Any], Callable[[Any, Wrong], list[pa.RecordBatch]]]:
    schema = step.schema
    match step.kind:
        case "arrow":
            return lambda batch: batch, lambda result, wrong: _from_arrow(result, schema, wrong)
        case "polars":
            expected = pl.DataFrame(schema.empty_table()).schema
            return pl.DataFrame, lambda result, wrong: _from_polars(result, schema, expected, wrong)
        case "pandas":
            _require_pandas()
            return lambda batch: batch.to_pandas(), lambda result, wrong: _from_pandas(result, schema, wrong)
        case _:
            raise UsageError(
                f"map_batches cannot give a function batches of kind {step.kind!r}",
                hint="use 'arrow', 'polars' or 'pandas'",
            )


def _require_pandas() -> None:
    try:
        importlib.import_module("pandas")
    except ImportError as error:
        raise UsageError(
            "map_batches with kind 'pandas' needs pandas, which is not installed here",
            hint="install pandas where Spark's Python workers run, or use kind 'arrow' or 'polars'",
        ) from error


def _from_arrow(result: Any, schema: pa.Schema, wrong: Wrong) -> list[pa.RecordBatch]:
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise wrong(f"expected a pyarrow RecordBatch or Table; got {_describe(result)}")
    if sorted(result.schema.names) != sorted(schema.names):
        raise wrong(f"expected columns {_columns(schema)}; got {_columns(result.schema)}")
    ordered = result.select(schema.names)
    if [field.type for field in ordered.schema] != [field.type for field in schema]:
        raise wrong(f"expected columns {_columns(schema)}; got {_columns(result.schema)}")
    if isinstance(ordered, pa.RecordBatch):
        return [pa.RecordBatch.from_arrays(ordered.columns, schema=schema)]
    # The cast changes no type; it takes the field's metadata and nullability from the schema.
    return ordered.cast(schema).combine_chunks().to_batches()


def _from_polars(result: Any, schema: pa.Schema, expected: pl.Schema, wrong: Wrong) -> list[pa.RecordBatch]:
    if not isinstance(result, pl.DataFrame):
        raise wrong(f"expected a polars DataFrame; got {_describe(result)}")
    if dict(result.schema) != dict(expected):
        raise wrong(f"expected columns {_polars_columns(expected)}; got {_polars_columns(result.schema)}")
    return result.select(schema.names).to_arrow().cast(schema).combine_chunks().to_batches()


def _from_pandas(result: Any, schema: pa.Schema, wrong: Wrong) -> list[pa.RecordBatch]:
    pandas = importlib.import_module("pandas")
    if not isinstance(result, pandas.DataFrame):
        raise wrong(f"expected a pandas DataFrame; got {_describe(result)}")
    names = [str(name) for name in result.columns]
    if sorted(names) != sorted(schema.names):
        raise wrong(f"expected columns {_columns(schema)}; got {', '.join(names)}")
    try:
        return [pa.RecordBatch.from_pandas(result, schema=schema, preserve_index=False)]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise wrong(f"expected columns {_columns(schema)}; {error}") from error


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _polars_columns(schema: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in schema.items())
