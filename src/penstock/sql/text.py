"""SQL text, translated to Polars expressions. Importing this module loads the parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from sqlglot import exp

from penstock.sql.arrays import ARRAYS
from penstock.sql.functions import FUNCTIONS
from penstock.sql.generators import Generated, generated
from penstock.sql.operators import OPERATORS
from penstock.sql.translation import RuleBook, Translator

RULES = RuleBook(OPERATORS, FUNCTIONS, ARRAYS)


@dataclass(frozen=True)
class Translated:
    """The expression that a text means."""

    expr: pl.Expr
    name: str | None
    """The name of the column, or the name behind AS; None if the text gives no name."""
    generated: Generated | None = None
    """The generator that the text is; None if the text computes one value per record."""


def translate(text: str, columns: Mapping[str, pl.DataType], *, argument: str) -> Translated:
    """The Polars expression for one SQL expression over `columns`. Raises `UsageError` naming `argument`."""
    # A text that is the name of a column means that column, whatever else the text would mean as SQL.
    if text in columns:
        return Translated(pl.col(text), text)
    translator = Translator(text, columns=columns, rules=RULES, argument=argument)
    node = translator.parsed()
    made = generated(translator, node)
    if made is not None:
        return Translated(made.arrays, made.name, generated=made)
    name = None
    if isinstance(node, exp.Alias):
        translator.check_arguments(node, ("this", "alias"))
        node, name = node.this, node.alias
    # A column by itself keeps its type, even a type that Spark does not have.
    if isinstance(node, exp.Column):
        column = translator.column_name(node)
        if len(node.parts) == 1:
            return Translated(pl.col(column), name or column)
        # As in Spark, a field by itself is named as the field.
        name = name or node.name
    return Translated(translator.value(node, None).expr, name)
