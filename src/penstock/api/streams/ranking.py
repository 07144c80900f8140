"""Records that are chosen by their order: the steps of `top` and of `deduplicate`, made from what a user said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.api.aggregate_kinds.base import type_of
from penstock.api.aggregate_kinds.top_rows import OrderColumn, top_rows
from penstock.api.changelog import ROW_KIND, Changelog, with_row_kind
from penstock.api.running_schema import running_partial_schema
from penstock.api.state import Ttl
from penstock.api.steps import LATE, WINDOW_ROWS, Aggregate, DeduplicateStep, RunningCombineStep, TopStep
from penstock.api.streams.running_aggregate import time_to_keep
from penstock.api.streams.stream_state import StreamState
from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError
from penstock.plan.graph import Input, Partitioning
from penstock.sql.schemas import can_be_key, unknown_column

By = str | Sequence[str]
Descending = bool | Sequence[bool]


@dataclass(frozen=True, kw_only=True)
class TopWords:
    """What a user said about the first records of an order."""

    most: int
    by: By
    descending: Descending
    rank: str | None


def checked_top(words: TopWords, schema: pa.Schema, keys: Sequence[str]) -> tuple[OrderColumn, ...]:
    """The columns that order records of `schema` with these keys. Raises `UsageError`."""
    most, rank = words.most, words.rank
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"top: n is {most!r}; the number of records must be a whole number above 0")
    names = tuple(words.by) if isinstance(words.by, Sequence) and not isinstance(words.by, str) else (words.by,)
    given = tuple(words.descending) if isinstance(words.descending, Sequence) else (words.descending,) * len(names)
    if not names or len(given) != len(names) or not all(isinstance(each, bool) for each in given):
        raise UsageError(
            f"top: by is {words.by!r}, and descending is {words.descending!r}",
            hint='give one or several columns, and one direction for all or one for each: by=["price", "ts"], '
            "descending=[True, False]",
        )
    for name in names:
        check_can_order(name, schema, "top")
    if rank is not None and (not isinstance(rank, str) or not rank or rank in (*schema.names, ROW_KIND)):
        raise UsageError(
            f"top: rank is {rank!r}, and the records have the columns {', '.join(schema.names)}",
            hint='give the name of a column that is not there yet, such as rank="rank"',
        )
    # Records of one key are equal in the columns of the key.
    order = [OrderColumn(name, each) for name, each in zip(names, given, strict=True) if name not in keys]
    if not order:
        raise UsageError(
            f"top: all records of a key are equal in {', '.join(names)}",
            hint="give a column besides the columns of the key",
        )
    return tuple(order)


def check_can_order(name: object, schema: pa.Schema, what: str) -> None:
    """Raise `UsageError` unless `name` is a column by which the step `what` can order records."""
    if not isinstance(name, str):
        raise UsageError(f"{what}: by takes names of columns, not {name!r}")
    if name not in schema.names:
        raise unknown_column(name, schema.names, argument=f"{what}: by")
    kind = type_of(schema, name, role=f"{what}: by: column")
    if not can_be_key(kind):
        raise UsageError(
            f"{what}: records cannot be ordered by column {name!r} of type {kind}",
            hint="numbers, booleans, decimals, dates, times, timestamps, strings and binary have an order",
        )


def listed_rows(words: TopWords, order: Sequence[OrderColumn], schema: pa.Schema, keys: Sequence[str]) -> Aggregate:
    """The aggregate that lists the first records, without the columns of the key."""
    columns = [name for name in schema.names if name not in keys]
    return top_rows(WINDOW_ROWS, words.most, order, columns)


def top_of_keys(
    state: StreamState, keys: tuple[str, ...], words: TopWords, *, ttl: Ttl | Duration | None, name: str | None
) -> StreamState:
    """What is known about the changelog of the first records of each key. Adds the steps. Raises `UsageError`."""
    _refuse_upserts(state, "top")
    order = checked_top(words, state.row_schema, keys)
    return _running_top(state, keys, words, order, ttl=ttl, kind="top", name=name)


def _running_top(
    state: StreamState,
    keys: tuple[str, ...],
    words: TopWords,
    order: tuple[OrderColumn, ...],
    *,
    ttl: Ttl | Duration | None,
    kind: str,
    name: str | None,
) -> StreamState:
    schema, retracts, ledger = state.row_schema, state.changelog is not None, state.ledger
    calls = (listed_rows(words, order, schema, keys),)
    partial = running_partial_schema(schema, keys=keys, aggregates=calls, retracts=retracts)
    rank = [] if words.rank is None else [pa.field(words.rank, pa.int32())]
    step = TopStep(
        keys=keys,
        aggregates=calls,
        input_schema=schema,
        partial=partial,
        schema=with_row_kind(pa.schema([*schema, *rank])),
        retracts=retracts,
        ttl=time_to_keep(ttl),
        most=words.most,
        rank=words.rank,
    )
    combine = RunningCombineStep(keys=keys, aggregates=calls, input_schema=schema, schema=partial, retracts=retracts)
    combined = ledger.add(combine, kind="combine", inputs=state.input_of_changes())
    by_key = Input(node=combined, partitioning=Partitioning.HASH, keys=keys)
    number = ledger.add(step, kind=kind, label="-".join((kind, *keys)), inputs=(by_key,), name=name)
    lost = state.time_lost
    if state.time_column is not None:
        lost = f"the rows of {ledger.step(number)} change, and a change comes behind the watermark"
    identified: tuple[str, ...] | None = keys if words.most == 1 else None
    if words.rank is not None:
        identified = (*keys, words.rank)
    return StreamState(
        ledger=ledger, last_step=number, schema=step.schema, time_lost=lost, changelog=Changelog(keys=identified)
    )


def last_of_keys(
    state: StreamState, keys: tuple[str, ...], *, ttl: Ttl | Duration | None, name: str | None
) -> StreamState:
    """What is known about the changelog of the last record of each key: the last in event time, or without event time
    the record that came last."""
    if all(column in keys for column in state.schema.names):
        raise UsageError(
            "deduplicate: the records of a key are equal in all columns, so that the first is like the last",
            hint='leave out keep="last", or give fewer columns',
        )
    time = state.time_column
    order = () if time is None or time in keys else (OrderColumn(time, descending=True),)
    words = TopWords(most=1, by=(), descending=True, rank=None)
    return _running_top(state, keys, words, order, ttl=ttl, kind="deduplicate", name=name)


def within_time(
    state: StreamState, keys: tuple[str, ...], within: Duration, *, keeps_last: bool, name: str | None
) -> StreamState:
    """What is known about one record of all records of a key that are close to each other in event time."""
    within_us, late = duration_us(within, argument="within"), state.late_records
    if within_us == 0:
        raise UsageError(f"deduplicate: within is {within!r}; give a duration above 0, or leave within out")
    if late is None:
        times = [field.name for field in state.schema if pa.types.is_timestamp(field.type)]
        raise UsageError(
            "deduplicate within a time needs event time, and this stream has none"
            + (f": {state.time_lost}" if state.time_lost else ""),
            hint=f'add .watermark("{times[0] if times else "ts"}", delay="5s") before',
        )
    schema = with_row_kind(state.schema) if keeps_last else state.schema
    step = DeduplicateStep(keys=keys, within_us=within_us, late=late, schema=schema, keeps_last=keeps_last)
    ledger = state.ledger
    number = ledger.add(
        step, kind="deduplicate", label="-".join(("deduplicate", *keys)), inputs=(state.input_by_key(keys),), name=name
    )
    sides = {LATE: state.late_behind(number)}
    if not keeps_last:
        return replace(state.behind(number, schema), sides=sides)
    return StreamState(
        ledger=ledger,
        last_step=number,
        schema=schema,
        time_lost=f"the rows of {ledger.step(number)} change, and a change comes behind the watermark",
        sides=sides,
        # A key has a row for each group of its records.
        changelog=Changelog(keys=None),
    )


def _refuse_upserts(state: StreamState, what: str) -> None:
    if state.changelog is not None and not state.changelog.has_before:
        raise UsageError(
            f"{what} has to know rows as they were before an update, and upserts() has left that out",
            hint="give it the changelog itself; call upserts() last",
        )
