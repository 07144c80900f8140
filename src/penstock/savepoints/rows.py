"""Rows that a user gives for a state, brought into the form of a state file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.api.state import StateKind, StateSpec
from penstock.core.errors import UsageError
from penstock.runtime.task.partitioning import key_groups
from penstock.savepoints.tables import column_names
from penstock.state.backend import TimerKind
from penstock.state.format import KEY_GROUP, MAP_KEY, TIMER_KIND, TIMERS, VALUE, WRITTEN, state_schema, timer_schema

_HINT = "give a table with the same columns as the table that reading the state returns"


class Rows(Protocol):
    """Rows that can be read by ranges of key groups."""

    def of_groups(self, first: int, last: int) -> pa.Table:
        """The rows whose key group is from `first` to `last`, in any order. The rows of one key keep their order."""
        ...


@dataclass(frozen=True, kw_only=True)
class GivenState:
    """A keyed state, or timers, with rows that a user gives."""

    spec: StateSpec | None
    """None for timers."""
    keys: pa.Schema
    rows: Rows

    @property
    def name(self) -> str:
        """The name of the state in a snapshot."""
        return TIMERS if self.spec is None else self.spec.name

    @property
    def kind(self) -> str:
        """The kind of the state in a snapshot."""
        return TIMERS if self.spec is None else self.spec.kind.value

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state's table in a file."""
        return timer_schema(self.keys) if self.spec is None else state_schema(self.spec, self.keys)

    @property
    def columns(self) -> list[str]:
        """The names that the columns of `schema` have in the given rows."""
        return column_names(self.schema.names, self.keys.names)

    @property
    def needed(self) -> list[str]:
        """The columns that the rows must have. The key group may be missing, because it is computed; the time of
        writing may be missing, and is then the present time."""
        optional = (KEY_GROUP, WRITTEN)
        return [name for name, column in zip(self.columns, self.schema.names, strict=True) if column not in optional]

    def table(self, groups: tuple[int, int], *, now_ms: int) -> pa.Table:
        """The table of a file with these key groups. Raises `UsageError` for rows that the state cannot have."""
        given = self.rows.of_groups(*groups)
        shaped = shape(given, self, now_ms=now_ms)
        self._check(shaped)
        return shaped

    def _check(self, table: pa.Table) -> None:
        keys = self.keys.names
        if self.spec is None:
            known = [kind.value for kind in TimerKind]
            kinds: Any = table.column(TIMER_KIND)
            wrong = [kind for kind in kinds.unique().to_pylist() if kind not in known]
            if wrong:
                raise UsageError(f"there is no timer of kind {wrong[0]!r}", hint=f"choose one of {', '.join(known)}")
            return
        if self.spec.kind is StateKind.LIST:
            return
        if self.spec.kind is StateKind.VALUE and table.column(VALUE).null_count:
            raise UsageError(
                f"the rows of state {self.name!r} have a key without a value", hint="leave rows without a value out"
            )
        identity = [*keys, MAP_KEY] if self.spec.kind is StateKind.MAP else keys
        counts: Any = table.select(identity).group_by(identity).aggregate([([], "count_all")])
        if counts.num_rows < table.num_rows:
            twice = next(row for row in counts.to_pylist() if row["count_all"] > 1)
            shown = zip(column_names(identity, keys), identity, strict=True)
            key = ", ".join(f"{name}={twice[column]!r}" for name, column in shown)
            raise UsageError(
                f"the rows of state {self.name!r} have {twice['count_all']} values for {key}",
                hint="give one value for each key",
            )


def shape(given: pa.Table, state: GivenState, *, now_ms: int) -> pa.Table:
    """The rows in the form of a state file, but not in its order. The rows must have key groups. Raises
    `UsageError`."""
    columns: list[Any] = []
    for field, name in zip(state.schema, state.columns, strict=True):
        if name not in given.schema.names and field.name == WRITTEN:
            columns.append(pa.array([now_ms] * given.num_rows, field.type))
            continue
        columns.append(cast(given.column(name), field.type, what=f"column {name!r} of state {state.name!r}"))
    table = pa.table(columns, schema=state.schema)
    if WRITTEN in table.schema.names and table.column(WRITTEN).null_count:
        raise UsageError(
            f"the rows of state {state.name!r} have an entry without its time of writing",
            hint="give the time of every entry, or leave the whole column of times out",
        )
    return table


def cast(column: Any, kind: pa.DataType, *, what: str) -> Any:
    """The column in another type. Raises `UsageError` if a value would be lost or changed."""
    try:
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise UsageError(f"{what} is of type {kind}; {column.type} was given ({error})") from error


def groups_of(batch: pa.RecordBatch, keys: pa.Schema, groups: int) -> pa.Array[Any]:
    """The key group of every row. Raises `UsageError`."""
    columns = [cast(batch.column(f.name), f.type, what=f"key column {f.name!r}") for f in keys]
    return pa.array(key_groups(pa.RecordBatch.from_arrays(columns, schema=keys), keys.names, groups), pa.int32())


def check_columns(given: Sequence[str], state: GivenState) -> None:
    """Raise `UsageError` if a needed column is missing, or if there is a column that the state does not have."""
    missing = [name for name in state.needed if name not in given]
    if missing:
        raise UsageError(f"rows of {state.name!r} have no column {missing[0]!r}", hint=_HINT)
    extra = [name for name in given if name not in state.columns]
    if extra:
        raise UsageError(
            f"rows of {state.name!r} have a column {extra[0]!r}, which is not among {', '.join(state.columns)}",
            hint=_HINT,
        )
