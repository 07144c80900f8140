"""Lookups: records joined with what another system says about their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import pyarrow as pa

from penstock.api.async_functions import check_async
from penstock.api.boundary import at_user_line
from penstock.api.join_steps import JoinKind
from penstock.api.lookups import Lookup
from penstock.api.streams.asking import AsksOthers
from penstock.api.streams.join_words import join_keys, join_kind
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError
from penstock.sql.schemas import SchemaLike, as_schema

_KINDS = (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)


@at_user_line
class LooksUp(AsksOthers):
    """What a stream can do with another system that knows its keys."""

    def lookup(  # noqa: PLR0913  # one keyword per choice
        self,
        function: Any,
        *,
        on: str | Sequence[str],
        schema: SchemaLike | None = None,
        how: Literal["inner", "left", "semi", "anti"] = "left",
        cache_rows: int = 100_000,
        cache_for: Duration = "1 min",
        concurrency: int = 100,
        timeout: Duration = "30s",
        retries: int = 0,
        name: str | None = None,
    ) -> Self:
        """The records together with what another system says about their keys: a join with a system that is asked.

        `function` is an `async def`, or an `AsyncFunction` with `on_row`. It gets a dict with the columns of `on`, and
        returns a dict with the columns of `schema`, a list of such dicts, or None if there is nothing. Each subtask
        asks once about a key, whatever number of records have it, and keeps the answer for `cache_for`. It keeps the
        answers about the `cache_rows` keys that came last. With `repartition(...)` before, a key is in one subtask. A
        null key is not asked about.

        >>> import asyncio
        >>> from penstock.testing import collect, run
        >>> async def customer(key):
        ...     await asyncio.sleep(0.01)  # a request to a server
        ...     return {"name": "ann"} if key["customer"] == 1 else None
        >>> def program(env):
        ...     orders = env.from_iterable([{"id": 7, "customer": 1}, {"id": 8, "customer": 2}])
        ...     orders.lookup(customer, on="customer", schema="name string").select("id", "name").write(collect())
        >>> sorted(run(program), key=lambda row: row["id"])
        [{'id': 7, 'name': 'ann'}, {'id': 8, 'name': None}]

        Calls are those of `async_map`: a try that has no answer after `timeout` is cancelled, and is repeated up to
        `retries` times. After a failure keys are asked about again, and every result leaves once.

        Args:
            function: asks the other system about one key.
            on: the columns of the key.
            schema: the columns of an answer; none for "semi" and "anti".
            how: "left" all records, with nulls where there is no answer; "inner" the records with an answer; "semi" and
                "anti" the records with and without an answer, without its columns.
            cache_rows: how many keys a subtask keeps answers about.
            cache_for: how long an answer is kept.
            concurrency: how many calls a subtask has under way at most.
            timeout: how long a try may take.
            retries: how many times a failed try is repeated.
            name: the name of the step.

        """
        state = self._state
        check_async(function, "lookup")
        kind = join_kind(how, _KINDS, what="lookup")
        keys, _ = join_keys(on, state.schema, state.schema)
        state.refuse_changelog("lookup")
        answers = _answers(schema, kind)
        for field in answers:
            if field.name in state.schema.names:
                raise UsageError(
                    f"lookup: the stream has a column {field.name!r}, and so have the answers",
                    hint="give the columns of the answers other names in schema, and in what the function returns",
                )
        if not isinstance(cache_rows, int) or isinstance(cache_rows, bool) or cache_rows < 1:
            raise UsageError(f"lookup: cache_rows is {cache_rows!r}", hint="give a whole number, 1 or more")
        made = pa.schema([*state.schema, *answers])
        asks = Lookup(
            function,
            keys=keys,
            how=kind.value,
            answers=answers,
            schema=made,
            cache_rows=cache_rows,
            cache_s=duration_ms(cache_for, argument="lookup: cache_for") / 1_000,
            concurrency=concurrency,
        )
        return self.async_map(
            asks, schema=made, concurrency=concurrency, timeout=timeout, retries=retries, batch=True, name=name
        )


def _answers(schema: SchemaLike | None, kind: JoinKind) -> pa.Schema:
    """The columns of an answer. Raises `UsageError`."""
    if not kind.has_pairs:
        if schema is not None:
            raise UsageError(f"lookup: how={kind.value!r} hands on no columns of answers", hint="leave out schema")
        return pa.schema([])
    if schema is None:
        raise UsageError("lookup needs the columns of an answer", hint='for example schema="name string"')
    return as_schema(schema, argument="lookup: schema")
