"""What a user's batch function takes, told by its annotation; and the schema of what the function returns, found by a
call of the function with a batch without rows."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import UsageError
from penstock.sql.schemas import arrow_type, check_schema, empty_frame

BatchKind = Literal["arrow", "table", "polars", "pandas"]
"""What a batch function takes and returns: `pa.RecordBatch`, `pa.Table`, `pl.DataFrame` or `pd.DataFrame`."""

_KINDS: dict[tuple[str, str], BatchKind] = {
    ("pyarrow", "RecordBatch"): "arrow",
    ("pyarrow", "Table"): "table",
    ("polars", "DataFrame"): "polars",
    ("pandas", "DataFrame"): "pandas",
}
_ALIASES = {"pa": "pyarrow", "pl": "polars", "pd": "pandas"}
"""How people name packages. An annotation may name a package that is imported for type checkers only."""

_GIVE_SCHEMA = "give schema=..., such as schema='auction bigint, price double'"


def batch_kind(function: Callable[[Any], Any], given: str | None) -> BatchKind:
    """What a function takes: what `given` says, or else the annotation of the function's first parameter. Without both,
    an Arrow batch. Raises `UsageError` if the two contradict each other, or if `given` is no kind of batches."""
    told = _annotated_kind(function)
    if given is None:
        kind: BatchKind = told or "arrow"
        _check_kind(kind)
        return kind
    _check_kind(given)
    if told is not None and told != given:
        raise UsageError(
            f"kind is {given!r}, and the annotation of the function says {told!r}",
            hint="leave kind out, or change the annotation",
        )
    return given  # type: ignore[return-value]  # checked above


def _annotated_kind(function: Callable[[Any], Any]) -> BatchKind | None:
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001  # an annotation may be any expression, and may name what is not imported
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return None
    first = next(iter(signature.parameters.values()), None)
    annotation = None if first is None else first.annotation
    if isinstance(annotation, str):
        package, _, name = annotation.strip("'\"").rpartition(".")
        return _KINDS.get((_ALIASES.get(package, package), name))
    if not isinstance(annotation, type):
        return None
    return _KINDS.get((annotation.__module__.partition(".")[0], annotation.__qualname__))


def _check_kind(kind: str) -> None:
    """Raise `UsageError` unless batches can be handed to a function in the form that `kind` names."""
    if kind not in get_args(BatchKind):
        raise UsageError(f"kind is {kind!r}; choose one of {', '.join(map(repr, get_args(BatchKind)))}")
    if kind == "pandas" and importlib.util.find_spec("pandas") is None:
        raise UsageError("kind is 'pandas', and pandas is not installed", hint="install pandas, or use kind='polars'")


def inferred_schema(function: Callable[[Any], Any], kind: BatchKind, schema: pa.Schema) -> pa.Schema:
    """The columns of the function's results for batches of `schema`. Raises `UsageError` if the columns cannot be
    found."""
    try:
        result = _first(function(_empty_batch(kind, schema)))
    except Exception as error:
        raise UsageError(
            f"the columns that map_batches returns are not known: called with a batch without rows, the function "
            f"raised {type(error).__name__}: {error}",
            hint=f"{_GIVE_SCHEMA}; or let the function handle a batch without rows",
        ) from error
    found = _schema_of(result)
    if found is None:
        raise UsageError(
            f"the columns that map_batches returns are not known: called with a batch without rows, the function "
            f"returned {'nothing' if result is None else type(result).__name__}",
            hint=_GIVE_SCHEMA,
        )
    for field in found:
        if pt.is_null(field.type):
            raise UsageError(
                f"the type of column {field.name!r} that map_batches returns cannot be told from a batch without rows",
                hint=_GIVE_SCHEMA,
            )
    return check_schema(found, argument="the result of map_batches")


def _empty_batch(kind: BatchKind, schema: pa.Schema) -> Any:
    match kind:
        case "arrow":
            return pa.RecordBatch.from_pylist([], schema=schema)
        case "table":
            return schema.empty_table()
        case "polars":
            return empty_frame(schema)
        case "pandas":
            return schema.empty_table().to_pandas()


def _first(result: Any) -> Any:
    """The result, or the first of several results."""
    if isinstance(result, Iterable) and _schema_of(result) is None:
        return next(iter(result), None)
    return result


def _schema_of(result: Any) -> pa.Schema | None:
    if isinstance(result, pa.RecordBatch | pa.Table):
        return result.schema.remove_metadata()
    if isinstance(result, pl.DataFrame):
        return pa.schema([pa.field(name, arrow_type(dtype)) for name, dtype in result.schema.items()])
    if type(result).__module__.partition(".")[0] == "pandas" and hasattr(result, "columns"):
        return pa.Schema.from_pandas(result, preserve_index=False).remove_metadata()
    return None
