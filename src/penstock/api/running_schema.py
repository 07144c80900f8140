"""The columns of running aggregates: what travels between the two halves of a running aggregate, what its state has,
and what comes out.

    partial     keys, then per aggregate its partial columns; over a changelog `__records` at the end
    result      keys, then per aggregate one column, then `row_kind`

`__records` is the number of records that are added less those that are taken back. A key without records has no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.api.aggregate_kinds.base import AggregateKind
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.aggregate_kinds.registry import kind_of
from penstock.api.aggregate_kinds.retracting import retracting_kind
from penstock.api.changelog import with_row_kind
from penstock.core.errors import UsageError

RECORDS = "__records"


def running_kinds(
    aggregates: Sequence[Aggregate], schema: pa.Schema, *, retracts: bool
) -> list[tuple[Aggregate, AggregateKind]]:
    """The kind of each aggregate over records of `schema`; `retracts` says that records may be taken back. Raises
    `UsageError`."""
    if not aggregates:
        raise UsageError("aggregate needs at least one aggregate", hint="for example n=count()")
    return [(a, retracting_kind(a, schema) if retracts else kind_of(a)) for a in aggregates]


def running_partial_schema(
    schema: pa.Schema, *, keys: Sequence[str], aggregates: Sequence[Aggregate], retracts: bool
) -> pa.Schema:
    """The columns of partial aggregates of records of `schema`. Raises `UsageError` if the aggregates cannot be
    computed."""
    fields: list[pa.Field[Any]] = [pa.field(key, schema.field(key).type) for key in keys]
    for aggregate, kind in running_kinds(aggregates, schema, retracts=retracts):
        fields += kind.partial_fields(aggregate, schema)
    if retracts:
        fields.append(pa.field(RECORDS, pa.int64()))
    return _distinct(fields)


def running_result_schema(
    schema: pa.Schema, *, keys: Sequence[str], aggregates: Sequence[Aggregate], retracts: bool
) -> pa.Schema:
    """The columns of the changelog of results. Raises `UsageError` if the aggregates cannot be computed."""
    fields: list[pa.Field[Any]] = [pa.field(key, schema.field(key).type) for key in keys]
    for aggregate, kind in running_kinds(aggregates, schema, retracts=retracts):
        fields.append(pa.field(aggregate.name, kind.result_type(aggregate, schema)))
    return with_row_kind(_distinct(fields))


def _distinct(fields: list[pa.Field[Any]]) -> pa.Schema:
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"the aggregates of a key would have two columns named {name!r}",
                hint="give the aggregate another name, or rename the key column before key_by",
            )
    return pa.schema(fields)
