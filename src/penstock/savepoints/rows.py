"""Rows that somebody gives for a state, brought into the form that files have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.api.state import StateKind, StateSpec
from penstock.core.errors import UsageError
from penstock.runtime.keys import key_groups
from penstock.savepoints.tables import column_names
from penstock.state.backend import TimerKind
from penstock.state.format import KEY_GROUP, MAP_KEY, TIMER_KIND, TIMERS, VALUE, WRITTEN, state_schema, timer_schema

_HINT = "give a table of the columns that reading the state gives"


class Rows(Protocol):
    """Rows that can be had a range of key groups at a time."""

    def of_groups(self, first: int, last: int) -> pa.Table:
        """Those whose key group is from `first` to `last`, in any order; those of one key in their own."""
        ...


@dataclass(frozen=True, kw_only=True)
class GivenState:
    """A keyed state, or timers, of which somebody gives the rows."""

    spec: StateSpec | None
    """None for timers."""
    keys: pa.Schema
    rows: Rows

    @property
    def name(self) -> str:
        """What it is called in a snapshot."""
        return TIMERS if self.spec is None else self.spec.name

    @property
    def kind(self) -> str:
        """What it is in a snapshot."""
        return TIMERS if self.spec is None else self.spec.kind.value

    @property
    def schema(self) -> pa.Schema:
        """The columns of its table in a file."""
        return timer_schema(self.keys) if self.spec is None else state_schema(self.spec, self.keys)

    @property
    def columns(self) -> list[str]:
        """The names that the rows have them under."""
        return column_names(self.schema.names, self.keys.names)

    @property
    def needed(self) -> list[str]:
        """Those that must be there: not the key group, which is computed, nor the time of writing, which may be now."""
        optional = (KEY_GROUP, WRITTEN)
        return [name for name, column in zip(self.columns, self.schema.names, strict=True) if column not in optional]

    def table(self, groups: tuple[int, int], *, now_ms: int) -> pa.Table:
        """The table of a file with these key groups. Raises `UsageError` for rows that cannot be the state's."""
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
            raise UsageError(f"state {self.name!r} is given a key without a value", hint="leave such rows out")
        identity = [*keys, MAP_KEY] if self.spec.kind is StateKind.MAP else keys
        counts: Any = table.select(identity).group_by(identity).aggregate([([], "count_all")])
        if counts.num_rows < table.num_rows:
            twice = next(row for row in counts.to_pylist() if row["count_all"] > 1)
            shown = zip(column_names(identity, keys), identity, strict=True)
            key = ", ".join(f"{name}={twice[column]!r}" for name, column in shown)
            raise UsageError(f"state {self.name!r} is given {twice['count_all']} values for {key}", hint="give one")


def shape(given: pa.Table, state: GivenState, *, now_ms: int) -> pa.Table:
    """Rows as a file has them, but for the order; key groups must be among them. Raises `UsageError`."""
    columns: list[Any] = []
    for field, name in zip(state.schema, state.columns, strict=True):
        if name not in given.schema.names and field.name == WRITTEN:
            columns.append(pa.array([now_ms] * given.num_rows, field.type))
            continue
        columns.append(cast(given.column(name), field.type, what=f"column {name!r} of state {state.name!r}"))
    table = pa.table(columns, schema=state.schema)
    if WRITTEN in table.schema.names and table.column(WRITTEN).null_count:
        raise UsageError(f"state {state.name!r} is given an entry without its time", hint="leave the column out")
    return table


def cast(column: Any, kind: pa.DataType, *, what: str) -> Any:
    """A column as another type, if nothing is lost by it. Raises `UsageError`."""
    try:
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise UsageError(f"{what} is of type {kind}; {column.type} was given ({error})") from error


def groups_of(batch: pa.RecordBatch, keys: pa.Schema, groups: int) -> pa.Array[Any]:
    """The key group of every row. Raises `UsageError`."""
    columns = [cast(batch.column(f.name), f.type, what=f"key column {f.name!r}") for f in keys]
    return pa.array(key_groups(pa.RecordBatch.from_arrays(columns, schema=keys), keys.names, groups), pa.int32())


def check_columns(given: Sequence[str], state: GivenState) -> None:
    """Raise `UsageError` unless all columns are there, and no others."""
    missing = [name for name in state.needed if name not in given]
    if missing:
        raise UsageError(f"rows of {state.name!r} have no column {missing[0]!r}", hint=_HINT)
    extra = [name for name in given if name not in state.columns]
    if extra:
        raise UsageError(
            f"rows of {state.name!r} have a column {extra[0]!r}, which is none of {', '.join(state.columns)}",
            hint=_HINT,
        )


class TableRows:
    """Rows that are in memory."""

    def __init__(self, table: pa.Table, keys: pa.Schema, groups: int) -> None:
        (name,) = column_names([KEY_GROUP], keys.names)
        if name in table.schema.names:
            table = table.drop_columns([name])
        whole = table.combine_chunks()
        numbers = [groups_of(batch, keys, groups) for batch in whole.to_batches()]
        self._table = whole.append_column(name, pa.chunked_array(numbers, pa.int32()))
        self._name = name

    def of_groups(self, first: int, last: int) -> pa.Table:
        """The rows of these key groups."""
        numbers: Any = self._table.column(self._name).to_numpy()
        return self._table.filter(pa.array((numbers >= first) & (numbers <= last)))
