"""Aggregates over all records so far: how the steps of a running aggregate are made."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregates import AggregateCall, named_aggregate
from penstock.api.changelog import Changelog
from penstock.api.running_schema import running_partial_schema, running_result_schema
from penstock.api.state import Ttl
from penstock.api.state import ttl as time_to_live
from penstock.api.steps import RunningCombineStep, RunningStep
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import check_key_types
from penstock.core.durations import Duration
from penstock.core.errors import UsageError
from penstock.plan.graph import Input, Partitioning

Aggregates = Mapping[str, AggregateCall | AggregateFunction]


def running_aggregate(
    state: StreamState, keys: tuple[str, ...], aggregates: Aggregates, ttl: Ttl | Duration | None
) -> StreamState:
    """What is known about the changelog of aggregates of each key, or of all records without keys. Adds the steps."""
    retracts = state.changelog is not None
    if state.changelog is not None and not state.changelog.has_before:
        raise UsageError(
            "an aggregate has to know rows as they were before an update, and upserts() has left that out",
            hint="aggregate the changelog itself; call upserts() last",
        )
    if keys:
        check_key_types(state.schema, keys)
    schema = state.row_schema
    calls = tuple(
        named_aggregate(name, call, schema=schema, time_column=state.time_column) for name, call in aggregates.items()
    )
    partial = running_partial_schema(schema, keys=keys, aggregates=calls, retracts=retracts)
    result = running_result_schema(schema, keys=keys, aggregates=calls, retracts=retracts)
    combine = RunningCombineStep(keys=keys, aggregates=calls, input_schema=schema, schema=partial, retracts=retracts)
    combined = state.ledger.add(combine, kind="combine", inputs=state.input_of_changes())
    step = RunningStep(
        keys=keys,
        aggregates=calls,
        input_schema=schema,
        partial=partial,
        schema=result,
        retracts=retracts,
        ttl=time_to_keep(ttl),
    )
    number = state.ledger.add(
        step,
        kind="aggregate",
        label="-".join(("aggregate", *keys)),
        inputs=(Input(node=combined, partitioning=Partitioning.HASH, keys=keys),),
    )
    lost = state.time_lost
    if state.time_column is not None:
        lost = f"the results of {state.ledger.step(number)} are of all times"
    return StreamState(
        ledger=state.ledger,
        last_step=number,
        schema=result,
        time_lost=lost,
        changelog=Changelog(keys=keys),
    )


def time_to_keep(given: Ttl | Duration | None) -> Ttl | None:
    """How long rows of a key are kept after its last record; None: for ever. Raises `UsageError`."""
    found = given if given is None or isinstance(given, Ttl) else time_to_live(given)
    if found is not None and found.renewed_by_reads:
        raise UsageError(
            "the rows of a key are read only when a record of the key comes, which writes them, too",
            hint="give a duration, such as ttl='1h'",
        )
    return found
