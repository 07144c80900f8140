"""Async functions over a stream: many calls to other systems at the same time."""

from __future__ import annotations

from typing import Any, Literal, Self

from penstock.api.async_functions import check_async, kind_of
from penstock.api.boundary import at_user_line
from penstock.api.steps import AsyncMapStep
from penstock.api.streams.stream_state import StreamState
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError
from penstock.core.task.requests import RequestPolicy
from penstock.plan.graph import Partitioning
from penstock.sql.schemas import SchemaLike, as_schema


@at_user_line
class AsksOthers:
    """What a stream can do with async functions."""

    _state: StreamState

    def __init__(self, state: StreamState) -> None:
        self._state = state

    def async_map(  # noqa: PLR0913  # one keyword per choice
        self,
        function: Any,
        *,
        schema: SchemaLike,
        concurrency: int = 100,
        timeout: Duration = "30s",
        ordered: bool = True,
        retries: int = 0,
        retry_pause: Duration = "100ms",
        on_failure: Literal["fail", "skip"] = "fail",
        batch: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """The records that an `async def` makes of each record, with many calls under way at the same time.

        The function takes a row (a dict) and returns a row, a list of rows, or None for no row. With `batch=True`, or
        if its parameter is annotated as a `pa.RecordBatch`, `pl.DataFrame` or `pd.DataFrame`, the function takes a
        batch and returns a batch or None. A function that needs a session is an object: see `AsyncFunction`.

        Each subtask has at most `concurrency` calls under way, results that cannot leave yet included. Further records
        wait. With `ordered` the results leave in the order of the records, otherwise as they come, but never across a
        watermark. A try that has no answer after `timeout` is cancelled. A failed try is repeated up to `retries`
        times, first after `retry_pause`, then after pauses that double. When the last try has failed, the job fails
        with the error and the row; with `on_failure="skip"` the row is left out and counted (`requests_skipped`).

        **Every result leaves once, and the function may be called more than once for a record.** Checkpoints have the
        records whose results have not left. After a failure the function is called for these records again.

        >>> import asyncio
        >>> import penstock as ps
        >>> from penstock.testing import run, scripted
        >>> async def score(row):
        ...     await asyncio.sleep(0.01)
        ...     return {"id": row["id"], "score": row["id"] * 0.5}
        >>> def program(env):
        ...     ids = env.read(scripted([{"id": 1}, {"id": 2}], schema="id bigint"))
        ...     scored = ids.async_map(score, concurrency=200, timeout="2s", schema="id bigint, score double")
        ...     scored.write(ps.collect())
        >>> run(program, parallelism=1)
        [{'id': 1, 'score': 0.5}, {'id': 2, 'score': 1.0}]
        """
        state = self._state
        check_async(function, "async_map")
        _check_count(concurrency, "concurrency", least=1)
        _check_count(retries, "retries", least=0)
        if on_failure not in ("fail", "skip"):
            raise UsageError(f"async_map has on_failure={on_failure!r}", hint="give 'fail' or 'skip'")
        if state.partitioning is Partitioning.BROADCAST:
            raise UsageError(
                "async_map cannot follow broadcast(): every subtask would ask about every record",
                hint="call async_map first, and broadcast its results",
            )
        step = AsyncMapStep(
            function=function,
            kind=kind_of(function, batch=batch),
            policy=RequestPolicy(
                concurrency=concurrency,
                timeout_ms=_positive_ms(timeout, "timeout"),
                ordered=ordered,
                retries=retries,
                pause_ms=_positive_ms(retry_pause, "retry_pause"),
            ),
            skips_failed=on_failure == "skip",
            input_schema=state.schema,
            keys=state.partition_keys if state.partitioning is Partitioning.HASH else (),
            schema=as_schema(schema, argument="schema"),
        )
        number = state.ledger.add(step, kind="async_map", name=name, inputs=state.input())
        return type(self)(state.behind(number, step.schema))


def _check_count(given: object, argument: str, *, least: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise UsageError(f"{argument} is {given!r}", hint=f"give a whole number, {least} or more")


def _positive_ms(given: Duration, argument: str) -> int:
    milliseconds = duration_ms(given, argument=argument)
    if not milliseconds:
        raise UsageError(f"{argument} is {given!r}", hint="give a duration above 0, such as '2s'")
    return milliseconds
