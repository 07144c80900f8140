"""An aggregate of a window as a plain description, in a step and in a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl

    from penstock.api.aggregate_functions import AggregateFunction

Parameter = bool | int | float | str

CUSTOM = "custom"
"""The kind of aggregates that users write. Their parameters are the name of the class, the type of the state and the
columns."""
OBJECT = "object"
"""The type of a state that is pickled."""


ROWS = "rows"
"""The kind of the aggregate that keeps whole records. Its parameters are the names of the columns."""
TOP_ROWS = "top_rows"
"""The kind of the aggregate that keeps the first records of an order. Its parameters are how many records are kept, how
many columns order the records, these columns, each with its direction, and the names of the columns that are kept."""


@dataclass(frozen=True)
class Condition:
    """Which records an aggregate takes. Conditions of the same text are equal."""

    text: str
    """The condition as the user wrote the condition; for an expression of Polars its text and a digest."""
    expression: pl.Expr = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One result column of a window."""

    name: str
    kind: str
    """The name of the kind, by which `registry` finds the kind."""
    column: str | None
    """The column that is aggregated; None if records are aggregated, as by `count`."""
    by: str | None = None
    """The column that orders the records, for a kind that picks records by their order."""
    parameters: tuple[Parameter, ...] = ()
    """What else the kind must know, such as the number of values to keep."""
    where: Condition | None = None
    """Only records that meet the condition are aggregated; None: all records."""

    function: AggregateFunction | None = field(default=None, compare=False)
    """The user's object, for an aggregate that the user wrote."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the aggregate reads."""
        if self.function is not None:
            return self.function.columns
        if self.kind == ROWS:
            return tuple(str(column) for column in self.parameters)
        if self.kind == TOP_ROWS:
            return tuple(str(column) for column in self.parameters[2 + int(self.parameters[1]) :])
        return tuple(column for column in (self.column, self.by) if column is not None)

    def saved(self) -> SavedAggregate:
        """The description in the form that snapshots have."""
        where = None if self.where is None else self.where.text
        return SavedAggregate(
            name=self.name, kind=self.kind, column=self.column, by=self.by, parameters=self.parameters, where=where
        )


class SavedAggregate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An aggregate in a snapshot. Fields with their default are left out, so that a snapshot of an aggregate that needs
    only the first three fields has only these fields."""

    name: str
    kind: str
    column: str | None
    by: str | None = None
    parameters: tuple[Parameter, ...] = ()
    where: str | None = None

    @property
    def is_pickled(self) -> bool:
        """Whether the partials of the aggregate are pickled objects."""
        return self.kind == CUSTOM and self.parameters[1:2] == (OBJECT,)

    def __str__(self) -> str:
        given = [self.column or ""]
        given += [f"by {self.by}"] if self.by is not None else []
        given += [str(parameter) for parameter in self.parameters]
        given += [f"where {self.where}"] if self.where is not None else []
        return f"{self.name}={self.kind}({', '.join(given)})"
