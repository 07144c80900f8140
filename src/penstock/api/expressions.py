"""Expressions over the columns of a record: Spark SQL text or Polars expressions, checked when the step is made.

**SQL text** is read as Spark SQL in ANSI mode with time zone UTC, and becomes a Polars expression that computes what
Spark would. The parts that are known:

* literals: numbers (also 5L, 2S, 1Y, 1.5D), 'texts', r'raw texts', TRUE, FALSE, NULL, DATE '…', TIMESTAMP '…'; columns,
  `quoted` columns, fields of structs (a.b); AS for a name
* + - * / % div and unary -, timestamp ± INTERVAL literal; `||`
* = == <> != < <= > >= <=>, IS [NOT] DISTINCT FROM, IS [NOT] NULL / TRUE / FALSE, [NOT] IN, BETWEEN, LIKE [ESCAPE],
  ILIKE, RLIKE; AND, OR, NOT with unknown as a third truth value
* CASE, IF, COALESCE, NVL, IFNULL, NVL2, NULLIF, ISNULL, ISNOTNULL, ISNAN; CAST, TRY_CAST and `::` between boolean, the
  whole numbers, float, double, string, date, timestamp, timestamp_ntz
* abs, ceil, floor, greatest, least, mod, pmod, round, sqrt; concat, contains, endswith, length, lower, ltrim, rtrim,
  startswith, substring, trim, upper
* split (with a literal pattern, in the syntax of RE2) and array; explode, explode_outer, posexplode and
  posexplode_outer, as a whole column of `select` or `with_columns`: one of them at most
* date, date_trunc, day, hour, minute, month, second, to_date, year; unix_micros, unix_millis, unix_seconds,
  unix_timestamp, timestamp_micros, timestamp_millis, timestamp_seconds

As in ANSI mode, an overflow, a division by zero or a text that is no number fails the job (guard by CASE, NULLIF or
TRY_CAST); a guarded part is not computed for the rows that the guard keeps out. Different from Spark: names of columns
are case-sensitive; a number with a decimal point is a double; a text is never compared with a number; patterns of RLIKE
have the syntax of Rust's regex; date and time texts are literals in ISO form. Text that uses anything else is refused.

**Polars expressions** are taken as they are, if they compute each record by itself. An expression that looks at other
records (a sum, a shift, a rank) would give results that depend on how records fall into batches, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa
from polars.exceptions import PolarsError

from penstock.api.steps import Explosion
from penstock.core.errors import UsageError
from penstock.sql.schemas import arrow_type, element_type, empty_frame, unknown_column

ExpressionLike = str | pl.Expr
"""What every expression argument takes."""


@dataclass(frozen=True, kw_only=True)
class ComputedColumn:
    """One column that an expression gives."""

    field: pa.Field[pa.DataType]
    origin: str | None
    """The input column that the column copies unchanged; None if the column is computed."""


@dataclass(frozen=True, kw_only=True)
class CompiledColumns:
    """A checked expression and its columns. A Polars expression that selects several columns gives several columns,
    and so does a generator that numbers its elements."""

    expr: pl.Expr
    columns: tuple[ComputedColumn, ...]
    explosion: Explosion | None = None
    """How the arrays that the expression computes become records; None if there is one value per record."""


def compile_condition(given: ExpressionLike, schema: pa.Schema, *, argument: str) -> pl.Expr:
    """The Polars expression that `given` means over records of `schema`. Raises `UsageError`, which names `argument`,
    unless the expression is boolean."""
    read = _read(given, schema, argument)
    if read.explosion is not None:
        raise UsageError(
            f"{argument} {_shown(given)} makes several records of one record, and a condition cannot",
            hint="use select(...) first, then the condition",
        )
    expr = read.expr
    kinds = list(_evaluated(given, expr, schema, argument).values())
    if kinds != [pl.Boolean()]:
        found = ", ".join(str(arrow_type(kind)) for kind in kinds)
        raise UsageError(
            f"{argument} {_shown(given)} is of type {found}, and a condition must be boolean",
            hint="make a comparison, for example with = or IS NOT NULL",
        )
    return expr


def compile_columns(
    given: ExpressionLike, schema: pa.Schema, *, argument: str, name: str | None = None
) -> CompiledColumns:
    """The expression together with its columns. `name` is the name for the column of an expression with one column.
    Raises `UsageError`, which names `argument`."""
    read = _read(given, schema, argument)
    expr = read.expr
    if not read.has_name and name is None:
        raise UsageError(
            f"{argument}: {given!r} computes a column that has no name",
            hint=f"write {f'{given} AS some_name'!r}, or some_name={given!r}",
        )
    kinds = _evaluated(given, expr, schema, argument)
    if read.explosion is not None:
        return _exploded(given, read.explosion, expr, schema, argument=argument, name=name)
    if name is not None:
        if len(kinds) != 1:
            raise UsageError(f"{argument} {_shown(given)} gives {len(kinds)} columns, so {name!r} cannot be its name")
        expr = expr.alias(name)
        kinds = dict(zip([name], kinds.values(), strict=True))
    columns = []
    for column, kind in kinds.items():
        origin = _origin(expr, column)
        field = pa.field(column, arrow_type(kind)) if origin is None else schema.field(origin).with_name(column)
        columns.append(ComputedColumn(field=field, origin=origin))
    return CompiledColumns(expr=expr, columns=tuple(columns))


def _exploded(
    given: ExpressionLike, explosion: Explosion, expr: pl.Expr, schema: pa.Schema, *, argument: str, name: str | None
) -> CompiledColumns:
    if name is not None:
        if explosion.position is not None:
            raise UsageError(
                f"{argument} {_shown(given)} gives 2 columns, so {name!r} cannot be its name",
                hint=f"give the text without a keyword, with AS (position, {name})",
            )
        explosion, expr = replace(explosion, column=name), expr.alias(name)
    origin = _origin(expr, explosion.column)
    arrays = schema.field(origin).type if origin is not None else arrow_type(empty_frame(schema).select(expr).dtypes[0])
    element = element_type(arrays)
    if element is None:
        raise UsageError(f"{argument} {_shown(given)}: {arrays} is no array, and only arrays can be exploded")
    columns = [ComputedColumn(field=pa.field(explosion.column, element), origin=None)]
    if explosion.position is not None:
        columns.insert(0, ComputedColumn(field=pa.field(explosion.position, pa.int32()), origin=None))
    return CompiledColumns(expr=expr, columns=tuple(columns), explosion=explosion)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """An expression as it was given."""

    expr: pl.Expr
    has_name: bool
    explosion: Explosion | None = None


def _read(given: ExpressionLike, schema: pa.Schema, argument: str) -> _Read:
    if isinstance(given, str):
        # Slots import this module and never parse: a slot must not wait for the import of the parser.
        from penstock.sql.text import translate

        translated = translate(given, dict(empty_frame(schema).schema), argument=argument)
        if translated.name is None:
            return _Read(expr=translated.expr, has_name=False)
        made, explosion = translated.generated, None
        if made is not None:
            explosion = Explosion(column=made.name, position=made.position, is_outer=made.is_outer)
        return _Read(expr=translated.expr.alias(translated.name), has_name=True, explosion=explosion)
    if not isinstance(given, pl.Expr):
        raise UsageError(
            f"{argument} is {given!r}, which is no expression", hint="give Spark SQL text or a Polars expression"
        )
    for root in given.meta.root_names():
        if root not in schema.names:
            raise unknown_column(root, schema.names, argument=f"{argument} {_shown(given)}")
    _check_row_by_row(given, argument)
    return _Read(expr=given, has_name=True)


def _origin(expr: pl.Expr, column: str) -> str | None:
    """The input column that the selected column copies; None if the expression computes the column."""
    if not expr.meta.is_column_selection(allow_aliasing=True):
        return None
    roots = expr.meta.root_names()
    # A selection of several columns cannot rename them.
    return roots[0] if len(roots) == 1 else column


def _evaluated(given: ExpressionLike, expr: pl.Expr, schema: pa.Schema, argument: str) -> dict[str, pl.DataType]:
    """The names and types of the expression's columns, found with a frame that has no rows."""
    try:
        columns = dict(empty_frame(schema).select(expr).schema)
    except Exception as error:  # the expression may call a function of the user
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"{argument} {_shown(given)} does not fit the records: {reason}") from error
    for kind in columns.values():
        if kind == pl.Null():
            raise UsageError(
                f"{argument} {_shown(given)} is always null, and so has no type",
                hint="write CAST(NULL AS …), or give pl.lit(None, dtype)",
            )
    return columns


# --- Polars expressions that mix records -----------------------------------------------------------------------------


def _check_row_by_row(expr: pl.Expr, argument: str) -> None:
    if expr.meta.is_column_selection(allow_aliasing=True):
        return
    if expr.meta.has_multiple_outputs():
        raise UsageError(
            f"{argument} {_shown(expr)} computes several columns at once",
            hint="write one expression per column; selecting several columns as they are is possible",
        )
    culprit = _mixing_part(expr)
    if culprit is not None:
        raise UsageError(
            f"{argument} {_shown(expr)}: {_shown(culprit)} looks at more than one record, so its result would depend "
            "on how records fall into batches",
            hint="aggregate by key_by(...).window(...).aggregate(...), or use map_batches to work on whole batches",
        )


def _mixing_part(expr: pl.Expr) -> pl.Expr | None:
    """The innermost part that looks at other records, or changes the number of records; None if no part does."""
    for part in expr.meta.pop():
        # A part that is computed from the elements of a list stays within one record.
        if not _is_of_elements(part) and (culprit := _mixing_part(part)) is not None:
            return culprit
    return None if _is_row_by_row(expr) else expr


def _is_of_elements(expr: pl.Expr) -> bool:
    return str(expr) == "element()" or any(_is_of_elements(part) for part in expr.meta.pop())


def _is_row_by_row(expr: pl.Expr) -> bool:
    try:
        keeps_rows = expr.meta.is_length_preserving() or expr.meta.is_scalar()
        return expr.meta.is_row_separable() and keeps_rows
    except PolarsError:
        # Polars cannot tell for a Python function. The arguments of the function have been checked before.
        return True


def _shown(given: ExpressionLike) -> str:
    return repr(given) if isinstance(given, str) else f"`{' '.join(str(given).split())}`"
