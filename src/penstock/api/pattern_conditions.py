"""The conditions of a pattern: which parts of a condition follow from a record alone, and which refer to records that
were taken before.

The parts that are joined by AND are told apart. Parts that refer to nothing are computed for whole batches of records;
the other parts are computed only for records for which the former are true, and only where a partial match may take
the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.expressions import ExpressionLike, compile_condition
from penstock.api.pattern_steps import PatternCondition, Reference
from penstock.api.patterns import likely
from penstock.sql.schemas import arrow_type, empty_frame

if TYPE_CHECKING:
    from sqlglot import exp

    from penstock.sql.translation import Reached, RuleBook, Translator
    from penstock.sql.values import Value

MOST_CONDITIONS = 60
"""The truths of a record are the bits of a whole number of the state."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of a pattern, as a condition sees them."""

    earlier: Mapping[str, int]
    """The names whose records the condition may refer to, with their numbers."""
    later: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """The names of parts that take no record."""


def read_condition(given: ExpressionLike | None, schema: pa.Schema, names: Names, *, argument: str) -> PatternCondition:
    """A condition over records of `schema`. Raises `UsageError`, which names `argument`."""
    if given is None:
        return PatternCondition(alone=None)
    if not isinstance(given, str) or given in schema.names:
        return PatternCondition(alone=compile_condition(given, schema, argument=argument))
    return _Reader(given, schema, names, argument).condition()


class _Reader:
    """Reads one text."""

    def __init__(self, text: str, schema: pa.Schema, names: Names, argument: str) -> None:
        # Slots never parse: a slot must not wait for the import of the parser.
        from penstock.sql.text import RULES
        from penstock.sql.translation import Translator

        self._schema = schema
        self._names = names
        self._columns = dict(empty_frame(schema).schema)
        self._references: dict[str, Reference] = {}
        self._types: dict[str, pa.DataType] = {}
        self._translator = Translator(text, columns=self._columns, rules=self._rules(RULES), argument=argument)

    def condition(self) -> PatternCondition:
        """The two parts of the condition."""
        alone: list[exp.Expression] = []
        referring: list[exp.Expression] = []
        for part in _conjuncts(self._translator.parsed()):
            self._references.clear()
            self._translator.boolean(part, None)
            (referring if self._references else alone).append(part)
        self._references.clear()
        expressions = [
            None if not parts else self._translator.boolean(_joined(parts), None).expr for parts in (alone, referring)
        ]
        if expressions[1] is None:
            return PatternCondition(alone=expressions[0])
        read = [name for name in expressions[1].meta.root_names() if name not in self._references]
        columns = tuple(dict.fromkeys(read))
        fields = [self._schema.field(name) for name in columns]
        fields += [pa.field(label, self._types[label]) for label in self._references]
        return PatternCondition(
            alone=expressions[0],
            referring=expressions[1],
            references=tuple(self._references.values()),
            columns=columns,
            schema=pa.schema(fields),
        )

    def _rules(self, rules: RuleBook) -> RuleBook:
        from sqlglot import exp

        from penstock.sql.translation import RuleBook

        book = RuleBook(rules)
        column = rules.by_kind[exp.Column]

        @book.rule(exp.Column, arguments=column.arguments)
        def of_column(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
            assert isinstance(node, exp.Column)
            if len(node.parts) == 1 or node.parts[0].name in self._columns:
                return column.apply(translator, node, reached)
            return self._value("last", node)

        kinds: tuple[type[exp.Expression], ...] = (exp.First, exp.Last, exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
        for kind, function in zip(kinds, ("first", "last", "count", "sum", "min", "max", "avg"), strict=True):

            @book.rule(kind, arguments=("this", "expressions", "big_int"))
            def over_records(
                translator: Translator,
                node: exp.Expression,
                reached: Reached,  # noqa: ARG001
                function: str = function,
            ) -> Value:
                if node.expressions or not isinstance(node.this, exp.Column):
                    raise translator.error(
                        node,
                        "is not over the records of a part",
                        hint=f"write {function}(<part>.<column>); compute outside of {function}",
                    )
                return self._value(function, node.this)

        return book

    def _value(self, function: str, node: exp.Column) -> Value:
        """A value over the records of a part of the pattern."""
        import polars as pl

        from penstock.sql.values import column_value

        part, *path = [each.name for each in node.parts]
        name = self._number_of(part, node)
        if not path or (function == "count" and path == ["*"]):
            if function != "count":
                raise self._translator.error(
                    node, f"is a part of the pattern, and {function} is over a column", hint=f"write {part}.<column>"
                )
            label = self._refer(function, name, None, pa.int64())
            return column_value(pl.col(label), pl.Int64())
        column, *inner = path
        if column not in self._schema.names:
            raise self._translator.error(
                node,
                f"has no column {column!r}; there are {', '.join(self._schema.names)}",
                hint=likely(column, self._schema.names),
            )
        kind = self._type_of(function, column, inner, node)
        label = self._refer(function, name, column, kind)
        dtype = empty_frame(pa.schema([pa.field(label, kind)])).schema[label]
        return self._translator.field_of(pl.col(label), dtype, inner, node)

    def _type_of(self, function: str, column: str, inner: Sequence[str], node: exp.Column) -> pa.DataType:
        kind: pa.DataType = self._schema.field(column).type
        if function in ("first", "last"):
            return kind
        if function == "count" and not inner:
            return pa.int64()
        is_whole, is_floating = pa.types.is_integer(kind), pa.types.is_floating(kind)
        comparable = is_whole or is_floating or pa.types.is_string(kind) or pa.types.is_temporal(kind)
        if inner or not (comparable if function in ("min", "max") else is_whole or is_floating):
            raise self._translator.error(node, f"is of type {kind}, and {function} cannot be computed of that")
        if function == "avg":
            return pa.float64()
        if function == "sum":
            return pa.int64() if is_whole else pa.float64()
        return kind

    def _refer(self, function: str, name: int, column: str | None, kind: pa.DataType) -> str:
        label = f"{function}({name}.{column or '*'})"
        while label in self._schema.names:
            label += "'"
        self._references[label] = Reference(function=function, name=name, column=column, label=label)
        self._types[label] = arrow_type(empty_frame(pa.schema([pa.field(label, kind)])).schema[label])
        return label

    def _number_of(self, part: str, node: exp.Column) -> int:
        names = self._names
        if part in names.earlier:
            return names.earlier[part]
        if part in names.later:
            raise self._translator.error(
                node,
                f"refers to {part!r}, which comes later in the pattern",
                hint="put the condition on the later part",
            )
        if part in names.refused:
            raise self._translator.error(node, f"refers to {part!r}, by which no record is taken")
        known = list(names.earlier)
        there = f"; there are {', '.join(known)}" if known else ", and no part of the pattern comes before"
        raise self._translator.error(
            node,
            f"refers to {part!r}, which is neither a column nor a part of the pattern{there}",
            hint=likely(part, [*known, *self._columns]),
        )


def _conjuncts(node: exp.Expression) -> list[exp.Expression]:
    """The parts that AND joins, in their order."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        inner = _conjuncts(node.this)
        return inner if len(inner) > 1 else [node]
    if isinstance(node, exp.And):
        return [*_conjuncts(node.this), *_conjuncts(node.expression)]
    return [node]


def _joined(parts: Sequence[exp.Expression]) -> exp.Expression:
    from sqlglot import exp

    found = parts[0]
    for part in parts[1:]:
        found = exp.And(this=found, expression=part)
    return found
