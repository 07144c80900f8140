"""Every kind of aggregate, by its name. To add a kind, write its class beside the others and add an object here; then
write the function with which users ask for the aggregate in `api/aggregates.py`."""

from __future__ import annotations

from penstock.api.aggregate_kinds.base import AggregateKind, names_of
from penstock.api.aggregate_kinds.basic import All, Any_, Count, Max, Mean, Min, Sum
from penstock.api.aggregate_kinds.collected import CollectList, CollectRows, CollectSet, CountDistinct, ExactQuantile
from penstock.api.aggregate_kinds.custom import Custom
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.aggregate_kinds.moments import Moments
from penstock.api.aggregate_kinds.picks import Pick, TopN
from penstock.api.aggregate_kinds.sketches import ApproxCountDistinct, ApproxQuantile
from penstock.api.aggregate_kinds.top_rows import TopRows
from penstock.core.errors import UsageError

KINDS: dict[str, AggregateKind] = {
    kind.name: kind
    for kind in (
        Count(),
        Sum(),
        Min(),
        Max(),
        Mean(),
        Any_(),
        All(),
        Moments("variance", population=False, root=False),
        Moments("var_pop", population=True, root=False),
        Moments("stddev", population=False, root=True),
        Moments("stddev_pop", population=True, root=True),
        Pick("first", greatest=False, last=False),
        Pick("last", greatest=True, last=True),
        Pick("min_by", greatest=False, last=False),
        Pick("max_by", greatest=True, last=False),
        TopN(),
        TopRows(),
        CollectList(),
        CollectRows(),
        CollectSet(),
        CountDistinct(),
        ExactQuantile(),
        ApproxCountDistinct(),
        ApproxQuantile(),
        Custom(),
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
