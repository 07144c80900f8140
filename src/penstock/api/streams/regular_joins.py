"""The step of a regular join, made from what a user said: rows of two streams match by key, whatever their times."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.api.changelog import Changelog
from penstock.api.join_steps import (
    LEFT,
    RIGHT,
    WRITTEN,
    JoinedColumn,
    JoinKind,
    JoinSide,
    RegularJoinStep,
)
from penstock.api.state import Ttl
from penstock.api.state import ttl as time_to_live
from penstock.api.streams.join_words import (
    ColumnsByKey,
    JoinWords,
    compiled_where,
    join_keys,
    join_kind,
    pair_columns,
)
from penstock.api.streams.stream_state import StreamState
from penstock.core.durations import Duration
from penstock.core.errors import UsageError
from penstock.plan.graph import Input, Partitioning


def joined_without_limit(
    left: StreamState, right: StreamState, words: JoinWords, *, ttl: Ttl | Duration | None
) -> StreamState:
    """What is known about the rows of a regular join. Raises `UsageError`."""
    how = join_kind(words.how, tuple(JoinKind))
    states = (left, right)
    for state, which in zip(states, ("this stream", "the other stream"), strict=True):
        _check_rows(state, which)
    keys = join_keys(words.on, left.row_schema, right.row_schema)
    plain = [ColumnsByKey(keys=each, schema=state.row_schema) for each, state in zip(keys, states, strict=True)]
    pairs = pair_columns(*plain, suffix=words.suffix)
    where, read = compiled_where(words.where, pairs)
    step = RegularJoinStep(
        left=_kept(plain[LEFT]),
        right=_kept(plain[RIGHT]),
        how=how,
        columns=pairs if how.has_pairs else tuple(column for column in pairs if column.left is not None),
        where=where,
        where_columns=read,
        retracts=(left.changelog is not None, right.changelog is not None),
        ttl_ms=_ttl_ms(ttl),
    )
    inputs = tuple(
        Input(node=state.last_step, partitioning=Partitioning.HASH, keys=each, side=state.side)
        for each, state in zip(keys, states, strict=True)
    )
    number = left.ledger.add(step, kind="join", label="-".join(("join", *keys[LEFT])), inputs=inputs, name=words.name)
    return StreamState(
        ledger=left.ledger,
        last_step=number,
        schema=step.schema,
        time_lost=f"the results of {left.ledger.step(number)} are of all times",
        changelog=Changelog(keys=_identity(step, states)) if step.has_changes else None,
    )


def _check_rows(state: StreamState, which: str) -> None:
    if state.changelog is not None and not state.changelog.has_before:
        raise UsageError(
            f"join has to know rows as they were before an update, and upserts() has left that out of {which}",
            hint="join the changelog itself; call upserts() last",
        )
    if WRITTEN in state.row_schema.names:
        raise UsageError(
            f"join: {which} has a column {WRITTEN!r}, and the join keeps the time of each row in a column of that name",
            hint=f'rename it before the join: .rename({{"{WRITTEN}": "..."}})',
        )


def _kept(side: ColumnsByKey) -> JoinSide:
    return JoinSide(keys=side.keys, schema=side.schema.append(pa.field(WRITTEN, pa.int64())), time_column=WRITTEN)


def _ttl_ms(given: Ttl | Duration | None) -> int | None:
    if given is None:
        return None
    found = given if isinstance(given, Ttl) else time_to_live(given)
    if found.renewed_by_reads:
        raise UsageError(
            "join: a row lives from the time at which it came, and matches do not renew it",
            hint='give a duration, such as ttl="1 h"',
        )
    return found.duration_ms


def _identity(step: RegularJoinStep, states: Sequence[StreamState]) -> tuple[str, ...] | None:
    """The columns that identify a row of the results; None if rows are told apart by nothing.

    The changes of a row must come from one subtask, or a reader could see them in another order. So the columns that
    are joined by have to be among the columns that identify a row.
    """
    left = _of_side(step, LEFT, states[LEFT])
    if not step.how.has_pairs:
        # The results have no columns of the right side but the keys.
        return left
    right = _of_side(step, RIGHT, states[RIGHT])
    if left is None or right is None:
        return None
    by_key = tuple(column.field.name for column in step.columns if column.left and column.right)
    is_single = tuple(all(name in by_key for name in names) for names in (left, right))
    if is_single[RIGHT] and step.how in (JoinKind.INNER, JoinKind.LEFT):
        found = left
    elif is_single[LEFT] and step.how in (JoinKind.INNER, JoinKind.RIGHT):
        found = right
    else:
        found = (*left, *(name for name in right if name not in left))
    return found if all(name in found for name in by_key) else None


def _of_side(step: RegularJoinStep, side: int, state: StreamState) -> tuple[str, ...] | None:
    """The names, in the results, of the columns that identify a row of a side."""
    if state.changelog is None or state.changelog.keys is None:
        return None
    names = {_name_in(column, side): column.field.name for column in step.columns}
    found = tuple(names[key] for key in state.changelog.keys)
    if not step.how.has_pairs and not all(key in state.changelog.keys for key in step.left.keys):
        return None
    return found


def _name_in(column: JoinedColumn, side: int) -> str | None:
    return column.left if side == LEFT else column.right
