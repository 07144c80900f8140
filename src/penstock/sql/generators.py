"""Generators of SQL text: functions that make several records of one record, such as `explode`.

A generator stands alone: it is the whole text of a column, with or without a name for the column. `explode` makes a
record of each element of an array, and no record of an empty array or of null. `explode_outer` makes a record with null
of these. `posexplode` and `posexplode_outer` give the number of the element, from 0, in a column of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from sqlglot import exp

from penstock.sql.translation import Translator
from penstock.sql.values import sql_name

_POSITION, _ELEMENT = "pos", "col"
"""How Spark names the columns of a generator that are not named."""


@dataclass(frozen=True)
class Generated:
    """What a generator makes, from an expression that computes arrays."""

    arrays: pl.Expr
    name: str
    """The name of the column with the elements."""
    position: str | None
    """The name of the column with the numbers of the elements; None if there is no such column."""
    is_outer: bool
    """Whether an empty array, and null, give a record with null."""


def generated(translator: Translator, node: exp.Expression) -> Generated | None:
    """What the text makes if the text is a generator; None if it is something else. Raises `UsageError`."""
    names: list[str] | None = None
    call = node
    if isinstance(node, exp.Aliases):
        call, names = node.this, [name.name for name in node.expressions]
    elif isinstance(node, exp.Alias):
        call, names = node.this, [node.alias]
    if not isinstance(call, exp.Explode):
        return None
    translator.check_arguments(call, ("this",))
    has_position = isinstance(call, exp.Posexplode)
    columns = [_POSITION, _ELEMENT] if has_position else [_ELEMENT]
    if names is not None and len(names) != len(columns):
        told = "2 columns, the number and the element" if has_position else "1 column"
        raise translator.error(
            node,
            f"gives {told}, and AS names {len(names)}",
            hint="write AS (position, element)" if has_position else "write AS element",
        )
    *positions, name = names or columns
    return Generated(
        arrays=_arrays(translator, call.this),
        name=name,
        position=positions[0] if positions else None,
        is_outer=isinstance(call, exp.ExplodeOuter),
    )


def _arrays(translator: Translator, node: exp.Expression) -> pl.Expr:
    # A column by itself keeps the type of its elements, even a type that Spark does not have.
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        return pl.col(translator.column_name(node))
    value = translator.value(node, None)
    if not isinstance(value.dtype, pl.List):
        raise translator.error(node, f"is {sql_name(value.dtype)} where an array is needed")
    return value.expr
