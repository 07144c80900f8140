"""Columns computed of the columns of a record, and records chosen by a condition over columns: by SQL text or Polars
expressions. Changes of rows stay changes: an expression says the same of a row before an update and after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

import polars as pl
import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.changelog import ROW_KIND, Changelog, with_row_kind
from penstock.api.expressions import CompiledColumns, ExpressionLike, compile_columns, compile_condition
from penstock.api.steps import SelectStep, Step, WhereStep
from penstock.api.streams.exploding import only_explosion
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import UsageError
from penstock.sql.schemas import empty_frame


@at_user_line
class ComputesColumns:
    """The methods of a stream that take expressions over columns."""

    _state: StreamState

    def _then(  # what is known of the records behind the step
        self,
        step: Step,
        schema: pa.Schema,
        *,
        kind: str,
        name: str | None = None,
        time_column: str | None,
        changelog: Changelog | None = None,
    ) -> Self:
        raise NotImplementedError

    def _check_columns(self, columns: Iterable[str], argument: str) -> None:
        raise NotImplementedError

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self._state.schema

    def where(self, condition: ExpressionLike, *, name: str | None = None) -> Self:
        """Only the records for which `condition` is true (not false, not null).

        Of a changelog: only the rows for which the condition is true. An update after which a row no longer meets the
        condition becomes a `delete`, and an update after which a row meets it for the first time an `insert`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3}, {"item": "ink", "price": 8}])
        ...     bids.where("price > 5").write(collect())
        >>> run(program)
        [{'item': 'ink', 'price': 8}]
        """
        state, changelog = self._state, self._state.changelog
        if changelog is not None and not changelog.has_before:
            raise UsageError(
                "where has to know a row as it was before an update, and upserts() has left that out",
                hint="call upserts() behind this step",
            )
        compiled = compile_condition(condition, state.row_schema, argument="condition")
        step = WhereStep(
            condition=compiled, schema=self.schema, has_changes=changelog is not None, written=str(condition)
        )
        return self._then(
            step, self.schema, kind="where", name=name, time_column=state.time_column, changelog=changelog
        )

    def select(self, *columns: ExpressionLike, **named: ExpressionLike) -> Self:
        """Only these columns, in this order. A computed column is named by AS or by keyword: `select("a", b="a + 1")`.
        One of the columns may be a generator, such as `select(word="explode(split(line, ' '))")`.

        To name the step, call `.name(...)` on the result.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3, "note": ""}])
        ...     bids.select("item", cents="price * 100").write(collect())
        >>> run(program)
        [{'item': 'pen', 'cents': 300}]
        """
        compiled = self._compiled(columns, named)
        if not compiled:
            raise UsageError("select needs at least one column")
        fields = [column.field for each in compiled for column in each.columns]
        _check_distinct([field.name for field in fields], "select")
        explosion = only_explosion(compiled, "select")
        if explosion is not None:
            self._state.refuse_changelog("a generator")
        step = SelectStep(
            columns=(*self._one_per_record([each.expr for each in compiled]), *self._row_kind()),
            keep=False,
            schema=self._with_row_kind(pa.schema(fields)),
            explosion=explosion,
            written=_written(columns, named),
        )
        kept = {
            column.origin: column.field.name
            for each in reversed(compiled)
            for column in reversed(each.columns)
            if column.origin is not None
        }
        return self._then_kept(step, kept, kind="select")

    def with_columns(self, *columns: ExpressionLike, **named: ExpressionLike) -> Self:
        """All columns of this stream, and the given columns. A given column replaces the column of the same name. Every
        expression sees the columns of this stream, and not the columns that replace them.

        To name the step, call `.name(...)` on the result.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3}])
        ...     bids.with_columns(item="upper(item)", cents="price * 100").write(collect())
        >>> run(program)
        [{'item': 'PEN', 'price': 3, 'cents': 300}]
        """
        compiled = self._compiled(columns, named)
        if not compiled:
            raise UsageError("with_columns needs at least one column")
        made = [column for each in compiled for column in each.columns]
        _check_distinct([column.field.name for column in made], "with_columns")
        fields = {field.name: field for field in self._state.row_schema}
        fields.update({column.field.name: column.field for column in made})
        explosion = only_explosion(compiled, "with_columns")
        if explosion is not None:
            self._state.refuse_changelog("a generator")
        step = SelectStep(
            columns=tuple(each.expr for each in compiled),
            keep=True,
            schema=self._with_row_kind(pa.schema(list(fields.values()))),
            explosion=explosion,
            written=_written(columns, named),
        )
        replaced = {column.field.name for column in made if column.origin != column.field.name}
        kept = {name: name for name in self._state.row_schema.names if name not in replaced}
        return self._then_kept(step, kept, kind="with_columns")

    def drop(self, *columns: str, name: str | None = None) -> Self:
        """All columns but these.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     env.from_iterable([{"item": "pen", "price": 3, "note": ""}]).drop("note").write(collect())
        >>> run(program)
        [{'item': 'pen', 'price': 3}]
        """
        self._check_columns(columns, "drop")
        kept = [column for column in self._state.row_schema.names if column not in columns]
        if not kept:
            raise UsageError("drop would leave no column")
        step = SelectStep(
            columns=(*(pl.col(column) for column in kept), *self._row_kind()),
            keep=False,
            schema=self._with_row_kind(pa.schema([self.schema.field(column) for column in kept])),
        )
        return self._then_kept(step, dict(zip(kept, kept, strict=True)), kind="drop", name=name)

    def rename(self, names: Mapping[str, str], *, name: str | None = None) -> Self:
        """The same columns under other names: `rename({"old": "new"})`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     env.from_iterable([{"item": "pen", "price": 3}]).rename({"item": "product"}).write(collect())
        >>> run(program)
        [{'product': 'pen', 'price': 3}]
        """
        self._check_columns(names, "rename")
        kept = {column: names.get(column, column) for column in self._state.row_schema.names}
        _check_distinct(list(kept.values()), "rename")
        step = SelectStep(
            columns=(*(pl.col(old).alias(new) for old, new in kept.items()), *self._row_kind()),
            keep=False,
            schema=self._with_row_kind(pa.schema([self.schema.field(old).with_name(new) for old, new in kept.items()])),
        )
        return self._then_kept(step, kept, kind="rename", name=name)

    def _then_kept(self, step: SelectStep, kept: Mapping[str, str], *, kind: str, name: str | None = None) -> Self:
        """The stream behind a step that computes columns. `kept` has the new names of the columns that are kept as they
        are."""
        state = self._state
        changelog = None if state.changelog is None else state.changelog.kept(kept)
        time_column = None if state.time_column is None else kept.get(state.time_column)
        return self._then(step, step.schema, kind=kind, name=name, time_column=time_column, changelog=changelog)

    def _row_kind(self) -> tuple[pl.Expr, ...]:
        return () if self._state.changelog is None else (pl.col(ROW_KIND),)

    def _with_row_kind(self, schema: pa.Schema) -> pa.Schema:
        return schema if self._state.changelog is None else with_row_kind(schema)

    def _compiled(
        self, columns: Iterable[ExpressionLike], named: Mapping[str, ExpressionLike]
    ) -> list[CompiledColumns]:
        schema = self._state.row_schema
        unnamed = [compile_columns(each, schema, argument="column") for each in columns]
        return unnamed + [
            compile_columns(each, schema, argument=f"column {name!r}", name=name) for name, each in named.items()
        ]

    def _one_per_record(self, exprs: list[pl.Expr]) -> tuple[pl.Expr, ...]:
        """The expressions. If all expressions are constants, the first expression is repeated for every record: Polars
        would make a single row of constants alone."""
        if empty_frame(self.schema).select(exprs).height == 0:
            return tuple(exprs)
        first = exprs[0]
        repeated = pl.when(pl.col(self.schema.names[0]).is_null()).then(first).otherwise(first)
        return (repeated.alias(first.meta.output_name()), *exprs[1:])


def _written(columns: tuple[ExpressionLike, ...], named: Mapping[str, ExpressionLike]) -> str:
    """Columns as a user wrote them."""
    return ", ".join([*map(str, columns), *(f"{column} AS {name}" for name, column in named.items())])


def _check_distinct(names: list[str], argument: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{argument} would make {names.count(name)} columns named {name!r}", hint="rename one")
