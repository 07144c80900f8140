"""Every kind of aggregate, by its name. To add a kind, write its class beside the others and add an object here; then
write the function with which users ask for the aggregate in `api/aggregates.py`."""

from __future__ import annotations

from penstock.api.aggregate_kinds.base import AggregateKind, names_of
from penstock.api.aggregate_kinds.basic import Count, Max, Mean, Min, Sum
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.core.errors import UsageError

KINDS: dict[str, AggregateKind] = {
    kind.name: kind
    for kind in (
        Count(),
        Sum(),
        Min(),
        Max(),
        Mean(),
    )
}


def kind_of(aggregate: Aggregate) -> AggregateKind:
    """The kind of an aggregate. Raises `UsageError` if there is no such kind."""
    kind = KINDS.get(aggregate.kind)
    if kind is None:
        raise UsageError(
            f"aggregate {aggregate.name!r} is of unknown kind {aggregate.kind!r}",
            hint=f"there are {names_of(list(KINDS.values()))}",
        )
    if kind.needs_column and aggregate.column is None:
        raise UsageError(f"aggregate {aggregate.name!r}: {aggregate.kind} needs a column")
    return kind
