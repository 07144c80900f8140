"""Streams of changes: what a stream can do only if it is a changelog, and what it cannot do then."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import polars as pl

from penstock.api.boundary import at_user_line
from penstock.api.changelog import ROW_KIND, UPDATE_BEFORE, Changelog
from penstock.api.steps import WhereStep
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import UsageError


@at_user_line
class HasChanges:
    """The methods of a changelog: of a stream whose last column, `row_kind`, says how each record changes a row."""

    _state: StreamState

    def _with_state(self, state: StreamState) -> Self:
        raise NotImplementedError

    def changes(self) -> Self:
        """The changes of a changelog as plain records. `row_kind` is a column like any other: `insert`,
        `update_before`, `update_after` or `delete`.

        Every step and every sink takes plain records. To read them as changes again is left to whoever reads them.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     words = env.from_iterable(["b", "a", "b"], schema="word string")
        ...     counts = words.key_by("word").aggregate(n=ps.count())
        ...     counts.changes().where("row_kind = 'insert'").select("word").write(ps.collect())
        >>> sorted(row["word"] for row in run(program))
        ['a', 'b']
        """
        self._changelog("changes")
        return self._with_state(replace(self._state, changelog=None))

    def upserts(self) -> Self:
        """The same changelog without `update_before`: the rows as they are after each change, and the rows that are
        gone. For readers that replace rows by key.

        Call it last: steps that aggregate or filter changes have to know the rows as they were before.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     words = env.from_iterable(["b", "a", "b"], schema="word string")
        ...     words.key_by("word").aggregate(n=ps.count()).upserts().changes().write(ps.collect())
        >>> {row["row_kind"] for row in run(program)} <= {"insert", "update_after"}
        True
        """
        changelog, state = self._changelog("upserts"), self._state
        if changelog.keys is None:
            raise UsageError(
                "upserts needs the columns that identify a row, and a step before has dropped or computed one of them",
                hint="keep the key columns of the aggregate, or call upserts() right behind it",
            )
        if not changelog.has_before:
            return self
        step = WhereStep(condition=pl.col(ROW_KIND) != UPDATE_BEFORE, schema=state.schema)
        number = state.ledger.add(step, kind="upserts", inputs=state.input_of_changes())
        behind = replace(state.behind(number, state.schema), changelog=Changelog(keys=changelog.keys, has_before=False))
        return self._with_state(behind)

    def _changelog(self, method: str) -> Changelog:
        found = self._state.changelog
        if found is None:
            raise UsageError(
                f"{method} is for changelogs, and the records of this stream stay as they are",
                hint="a changelog is what key_by(...).aggregate(...) without a window makes",
            )
        return found
