"""Several records of one record: a record of each element of an array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import polars as pl
import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.expressions import CompiledColumns
from penstock.api.steps import Explosion, SelectStep, Step
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import UsageError
from penstock.sql.schemas import element_type


def only_explosion(compiled: Iterable[CompiledColumns], argument: str) -> Explosion | None:
    """The generator among some columns, if there is one. Raises `UsageError`, as Spark does, if there are several."""
    found = [each.explosion for each in compiled if each.explosion is not None]
    if len(found) > 1:
        names = ", ".join(repr(each.column) for each in found)
        raise UsageError(
            f"{argument} has {len(found)} generators, for the columns {names}, and only one is possible",
            hint="explode one array, then the other array in a step of its own",
        )
    return found[0] if found else None


@at_user_line
class Explodes:
    """The method of a stream that makes a record of each element of an array."""

    _state: StreamState

    def _then(
        self, step: Step, schema: pa.Schema, *, kind: str, name: str | None = None, time_column: str | None
    ) -> Self:
        raise NotImplementedError

    def _check_columns(self, columns: Iterable[str], argument: str) -> None:
        raise NotImplementedError

    def explode(self, column: str, *, as_: str | None = None, outer: bool = False, name: str | None = None) -> Self:
        """A record of each element of the array in `column`, in the order of the elements. The element takes the place
        of the array, under the name `as_` if a name is given; all other columns stay as they are.

        An empty array, or null, gives no record; with `outer` it gives a record with null. The same can be written as a
        generator of Spark SQL: `select("id", word="explode(words)")`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     lines = env.from_iterable([{"id": 1, "words": ["to", "be"]}], schema="id bigint, words array<string>")
        ...     lines.explode("words", as_="word").write(collect())
        >>> run(program)
        [{'id': 1, 'word': 'to'}, {'id': 1, 'word': 'be'}]
        """
        self._check_columns([column], "explode")
        state, element = self._state, element_type(self._state.schema.field(column).type)
        if element is None:
            arrays = [field.name for field in state.schema if element_type(field.type) is not None]
            raise UsageError(
                f"explode: column {column!r} is of type {state.schema.field(column).type}, which is no array",
                hint=f"the columns with arrays are {', '.join(arrays)}" if arrays else "no column has arrays",
            )
        target = column if as_ is None else as_
        if not isinstance(target, str) or (target != column and target in state.schema.names):
            raise UsageError(f"explode: as_ is {as_!r}; give a name that no other column has")
        fields = [pa.field(target, element) if f.name == column else f for f in state.schema]
        step = SelectStep(
            columns=(pl.col(column).alias(target),),
            keep=True,
            schema=pa.schema(fields),
            explosion=Explosion(column=target, is_outer=outer),
        )
        return self._then(step, step.schema, kind="explode", name=name, time_column=state.time_column)
