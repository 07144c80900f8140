"""From SQL text to a Polars expression: the walk over the parsed text, and the errors for text that no rule knows.

A rule book has one rule per kind of node, and one rule per name of a function that the parser has no kind for. A rule
names the arguments of a node that the rule understands: a node with any other argument is refused, since ignoring an
argument would compute something else than what was written.

Spark computes a branch of CASE, or the right side of AND, only for the rows that need it, and Polars for all rows. So
each rule is told which rows *reach* the node: an operation that could fail (a division, a cast) gets nulls in all other
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import polars as pl
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from penstock.core.errors import UsageError
from penstock.sql.schemas import unknown_column
from penstock.sql.values import (
    BIGINT,
    BOOLEAN,
    NULL,
    NotPossible,
    Value,
    cast,
    column_value,
    common_type,
    sql_name,
    widened,
)

Reached = pl.Expr | None
"""The rows for which Spark would compute a part of the text; None: all rows."""

Apply = Callable[["Translator", exp.Expression, Reached], Value]

_WAY_OUT = "write a Polars expression instead, or use map_batches"


@dataclass(frozen=True)
class Rule:
    """How one kind of node is translated."""

    arguments: tuple[str, ...]
    """The arguments of a node that the rule understands."""
    apply: Apply


class RuleBook:
    """Rules by the kind of the node, and by the name of the function."""

    def __init__(self, *included: RuleBook) -> None:
        self.by_kind: dict[type[exp.Expression], Rule] = {}
        self.by_name: dict[str, Rule] = {}
        for book in included:
            self.by_kind.update(book.by_kind)
            self.by_name.update(book.by_name)

    def rule(self, *kinds: type[exp.Expression], arguments: tuple[str, ...] = ("this",)) -> Callable[[Apply], Apply]:
        """Make a function the rule for these kinds of nodes. The rule understands these arguments of a node."""

        def add(function: Apply) -> Apply:
            self.by_kind.update(dict.fromkeys(kinds, Rule(arguments, function)))
            return function

        return add

    def function(self, *names: str) -> Callable[[Apply], Apply]:
        """Make a function the rule for calls by these names."""

        def add(function: Apply) -> Apply:
            self.by_name.update(dict.fromkeys(names, Rule(("this", "expressions"), function)))
            return function

        return add

    def find(self, node: exp.Expression) -> Rule | None:
        """The rule for a node; None if the book has no rule for the node."""
        return self.by_name.get(node.name.lower()) if isinstance(node, exp.Anonymous) else self.by_kind.get(type(node))

    def like(self, name: str) -> list[str]:
        """The names of functions that are known and most like `name`; `explode` is read elsewhere, and known, too."""
        kinds = (kind for kind in self.by_kind if issubclass(kind, exp.Func))
        known = dict.fromkeys(("explode", *self.by_name, *(n.lower() for kind in kinds for n in kind.sql_names())))
        return get_close_matches(name.lower(), list(known), n=1, cutoff=0.7)


class Translator:
    """Walks over one text."""

    def __init__(self, text: str, *, columns: Mapping[str, pl.DataType], rules: RuleBook, argument: str) -> None:
        self._text = text
        self._columns = columns
        self._rules = rules
        self._argument = argument

    def parsed(self) -> exp.Expression:
        """The text as a tree."""
        try:
            node = sqlglot.parse_one(_with_escaped_quotes(self._text), dialect="spark")
        except SqlglotError as error:
            raise UsageError(
                f"{self._argument}: {self._text!r} is no SQL expression: {_parse_problem(error)}",
                hint="the text is read as Spark SQL; a column whose name is no plain word needs `backquotes`",
            ) from None
        assert isinstance(node, exp.Expression)
        return node

    def value(self, node: exp.Expression, reached: Reached) -> Value:
        """What a node computes."""
        rule = self._rules.find(node)
        if rule is None:
            raise self.unsupported(node)
        self.check_arguments(node, rule.arguments)
        return rule.apply(self, node, reached)

    def values(self, nodes: list[exp.Expression], reached: Reached) -> list[Value]:
        """What several nodes compute."""
        return [self.value(node, reached) for node in nodes]

    def boolean(self, node: exp.Expression, reached: Reached) -> Value:
        """What a node computes, which must be true, false or null."""
        value = self.value(node, reached)
        if value.dtype not in (BOOLEAN, NULL):
            raise self.error(node, f"is {sql_name(value.dtype)} where a condition is needed")
        return cast(value, BOOLEAN, reached=None, lenient=False)

    def of_type(self, node: exp.Expression, dtype: pl.DataType, reached: Reached) -> Value:
        """What a node computes, which must be of one type (or null)."""
        value = self.value(node, reached)
        if value.dtype not in (dtype, NULL):
            needed, found = sql_name(dtype), sql_name(value.dtype)
            raise self.error(node, f"is {found} where {needed} is needed", hint=f"use CAST(… AS {needed.upper()})")
        return cast(value, dtype, reached=None, lenient=False)

    def numeric(self, node: exp.Expression, reached: Reached) -> Value:
        """What a node computes, which must be a number that arithmetic is defined for."""
        value = self.value(node, reached)
        if not value.is_numeric and value.dtype != NULL:
            raise self.error(
                node,
                f"is {sql_name(value.dtype)} where a number is needed",
                hint="use CAST(… AS BIGINT) or CAST(… AS DOUBLE); there is no arithmetic with decimals",
            )
        return value

    def whole(self, node: exp.Expression, reached: Reached) -> Value:
        """What a node computes as bigint, which must be a whole number."""
        value = self.numeric(node, reached)
        if value.is_float:
            raise self.error(node, f"is {sql_name(value.dtype)} where a whole number is needed")
        return cast(value, BIGINT, reached=None, lenient=False)

    def unified(self, values: list[Value], node: exp.Expression) -> tuple[list[Value], pl.DataType]:
        """The values in their common type, and the common type."""
        try:
            dtype = common_type(values)
            return [widened(value, dtype) for value in values], dtype
        except NotPossible as error:
            raise self.error(node, f"cannot be computed: {error}", hint=error.hint) from None

    def cast(self, value: Value, dtype: pl.DataType, node: exp.Expression, *, reached: Reached, lenient: bool) -> Value:
        """The value turned into another type."""
        try:
            return cast(value, dtype, reached=reached, lenient=lenient)
        except NotPossible as error:
            raise self.error(node, f"cannot be computed: {error}", hint=error.hint) from None

    def string_literal(self, node: exp.Expression, role: str) -> str:
        """The characters of a node that must be a string literal."""
        if isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string):
            return str(node.this)
        raise self.error(node, f"is not supported as {role}, only a string literal is", hint=_WAY_OUT)

    def integer_literal(self, node: exp.Expression, role: str) -> int:
        """The value of a node that must be a whole number as literal."""
        if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
            return int(node.this)
        raise self.error(node, f"is not supported as {role}, only a literal from 0 is", hint=_WAY_OUT)

    def column_name(self, node: exp.Column) -> str:
        """The column that a node names. Raises `UsageError` if there is no such column."""
        name = str(node.parts[0].name)
        if name not in self._columns:
            raise unknown_column(name, list(self._columns), argument=f"{self._argument} {self._text!r}")
        return name

    def column(self, node: exp.Column) -> Value:
        """The value of a column, or of a field in a column of structs."""
        name = self.column_name(node)
        return self.field_of(pl.col(name), self._columns[name], [part.name for part in node.parts[1:]], node)

    def field_of(self, expr: pl.Expr, dtype: pl.DataType, path: Sequence[str], node: exp.Expression) -> Value:
        """The value of a field in structs in structs. A field of an array of structs is the array of the fields."""
        for number, part in enumerate(path):
            inner = getattr(dtype, "inner", None)
            if isinstance(dtype, pl.List | pl.Array) and inner == pl.Struct:
                within = self.field_of(pl.element(), _made(inner), path[number:], node)
                values = expr.list if isinstance(dtype, pl.List) else expr.arr.to_list().list
                return Value(values.eval(within.expr), pl.List(within.dtype))
            fields = {field.name: field.dtype for field in dtype.fields} if isinstance(dtype, pl.Struct) else {}
            if part not in fields:
                near = get_close_matches(part, fields, n=1, cutoff=0.5)
                raise self.error(
                    node,
                    f"has no field {part!r}; there are {', '.join(fields) or 'none'}",
                    hint=f"did you mean {near[0]!r}?" if near else None,
                )
            expr, dtype = expr.struct.field(part), _made(fields[part])
        return column_value(expr, dtype)

    def check_arguments(self, node: exp.Expression, understood: tuple[str, ...]) -> None:
        """Raise `UsageError` if a node has arguments that its rule does not understand."""
        if any(given not in (None, False, []) for name, given in node.args.items() if name not in understood):
            raise self.unsupported(node)

    def unsupported(self, node: exp.Expression) -> UsageError:
        """The error for a part that has no rule."""
        if isinstance(node, exp.Star):
            return self.error(node, "is not an expression", hint="to keep all columns use with_columns")
        if isinstance(node, exp.UDTF):
            return self.error(
                node,
                "makes several records of one record, and cannot be a part of another expression",
                hint="let explode(...) be a whole column of select(...), and compute with the column in the next step",
            )
        if isinstance(node, exp.Query):
            return self.error(node, "is a query where an expression is needed")
        if isinstance(node, exp.AggFunc | exp.Window):
            return self.error(
                node,
                "needs more than one record",
                hint="aggregate by key_by(...).window(...).aggregate(...); expressions see one record at a time",
            )
        if isinstance(node, _NOT_REPEATABLE):
            return self.error(
                node,
                "gives another result each time, so a replay after a failure would differ",
                hint="take the value from a column of the record",
            )
        if isinstance(node, exp.Anonymous) and (near := self._rules.like(node.name)):
            return self.error(node, "is not supported", hint=f"did you mean {near[0]}(...)? Otherwise {_WAY_OUT}")
        return self.error(node, "is not supported", hint=_WAY_OUT)

    def error(self, node: exp.Expression, what: str, *, hint: str | None = None) -> UsageError:
        """The error for a part of the text."""
        part = self.written(node)
        whole = "" if part == self._text else f" in {self._text!r}"
        return UsageError(f"{self._argument}: {part!r}{whole} {what}", hint=hint)

    def written(self, node: exp.Expression) -> str:
        """A node as text, near to how it was written."""
        return str(node.sql(dialect="spark", normalize_functions=False))


def _made(dtype: Any) -> pl.DataType:
    """A type that may stand as its class."""
    found: pl.DataType = dtype if isinstance(dtype, pl.DataType) else dtype()
    return found


_NOT_REPEATABLE = (exp.Rand, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.Uuid)


def _with_escaped_quotes(text: str) -> str:
    """The text with each doubled quote in a literal escaped by a backslash: the parser would read a literal with a
    doubled quote as two literals."""
    tokens = sqlglot.tokenize(text, read="spark")
    for one, following in reversed(list(pairwise(tokens))):
        if one.token_type is following.token_type is TokenType.STRING and following.start == one.end + 1:
            text = f"{text[: one.end]}\\{text[one.end]}{text[following.start + 1 :]}"
    return text


def _parse_problem(error: SqlglotError) -> str:
    errors = getattr(error, "errors", None)
    if not errors:
        return str(error).splitlines()[0]
    first = errors[0]
    near = f"{first['start_context'][-20:]}{first['highlight']}{first['end_context'][:20]}".strip()
    return f"it cannot be read near {near!r}"
