"""Looking at a stream from where the program is written: all its results, or some rows."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.first_rows import FirstRows
from penstock.api.running import Runner, StreamPath
from penstock.api.showing import as_shown
from penstock.api.steps import ProcessStep, ReadStep
from penstock.api.streams.stream_state import Row, StreamState
from penstock.api.table_of_changes import table_of_changes
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError
from penstock.sql.python_values import table_rows

Shape = Literal["rows", "arrow", "polars", "pandas", "spark"]

SHAPES = ("rows", "arrow", "polars", "pandas", "spark")
LIMIT = 1_000_000
UNENDING_MS = 10_000
"""How long rows of a stream that does not end are waited for, unless the user says otherwise."""


@at_user_line
class CanBeLookedAt:
    """What a stream can show of itself. Only the steps that lead to the stream are run, apart from the program: its
    sinks get nothing, and its jobs and their checkpoints are as if nothing had been looked at."""

    _state: StreamState

    def collect(self, as_: Shape = "rows", *, limit: int = LIMIT) -> Any:
        """Run the steps that lead to this stream to their end, as a job of their own, and return all its records.

        `as_` says as what: "rows" a list of dicts, "arrow" a table, "polars" and "pandas" a DataFrame, "spark" a
        DataFrame of the environment's session. With more than `limit` records the job fails. A stream that does not
        end is refused: use `take`, or `stream.limit(n)` before. Of a changelog the rows are returned as they are after
        all changes; `.changes().collect()` returns the changes.

        >>> import penstock as ps
        >>> from penstock.testing import run, scripted
        >>> def program(env):
        ...     numbers = env.read(scripted([{"n": 1}, {"n": 2}], schema="n bigint")).where("n > 1")
        ...     print(numbers.collect())
        ...     numbers.write(ps.collect())
        >>> _ = run(program)
        [{'n': 2}]
        """
        if as_ not in SHAPES:
            raise UsageError(f"collect has as_={as_!r}", hint=f"give one of {', '.join(map(repr, SHAPES))}")
        _check_count(limit, "limit")
        runner, path = self._runner("collect"), self._path()
        if unending := self._unlimited():
            raise UsageError(
                f"collect needs a stream that ends, and {', '.join(unending)} never ends",
                hint="look at some rows with take(n); or put limit(n) before; or write the stream to a sink and run it",
            )
        table = runner.collected(path, limit=limit)
        changelog = self._state.changelog
        return _as(as_, table if changelog is None else table_of_changes(table, changelog), runner)

    def take(self, n: int, *, timeout: Duration | None = None) -> list[Row]:
        """The first `n` records that come out here, as dicts: a look at the stream, in this process, with no slots.

        With a stream that ends there are `n` records unless it has fewer. After `timeout` no more are waited for, with
        a stream that does not end after 10 seconds. Which records come first may differ from call to call.

        Of a changelog that ends, the rows are those after all its changes. Of a changelog that does not end, the rows
        are those after its first `n` changes.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     numbers = env.from_iterable(range(5), schema="n bigint")
        ...     print(numbers.where("n > 3").take(1))
        ...     numbers.write(collect())
        >>> _ = run(program)
        [{'n': 4}]
        """
        return table_rows(self._sample(n, timeout, "take"))

    def show(self, n: int = 20, *, truncate: int | None = 20, timeout: Duration | None = None) -> None:
        """Print the first `n` records that come out here as a table, as Spark's `show` does; see `take`.

        Values longer than `truncate` characters are cut; None: no value is cut.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3}])
        ...     bids.show()
        ...     bids.write(collect())
        >>> _ = run(program)
        +----+-----+
        |item|price|
        +----+-----+
        | pen|    3|
        +----+-----+
        """
        _check_count(n, "n")
        if truncate is not None:
            _check_count(truncate, "truncate")
        found = self._sample(n + 1, timeout, "show")
        print(as_shown(found.slice(0, n), truncate=truncate, more=found.num_rows > n), end="")  # noqa: T201  # it is asked to

    def _sample(self, n: int, timeout: Duration | None, method: str) -> pa.Table:
        _check_count(n, "n")
        runner, path = self._runner(method), self._path()
        timeout_ms = None if path.ends else UNENDING_MS
        if timeout is not None:
            timeout_ms = duration_ms(timeout, argument="timeout")
        changelog = self._state.changelog
        if changelog is None:
            return runner.sampled(path, rows=n, timeout_ms=timeout_ms)
        # The rows of a table that is complete only at the end are not to be seen before.
        changes = runner.sampled(path, rows=LIMIT if path.ends else n, timeout_ms=timeout_ms)
        return table_of_changes(changes, changelog).slice(0, n)

    def _runner(self, method: str) -> Runner:
        runner = self._state.ledger.runner
        if runner is None:
            raise UsageError(
                f"{method} needs an environment that can run something", hint="make a ps.Environment(spark)"
            )
        return runner

    def _path(self) -> StreamPath:
        state = self._state
        for step in state.ledger.path_to(state.last_step):
            if isinstance(step.step, ReadStep) and step.step.source.induces_checkpoints:
                raise UsageError(
                    f"marks in the data of {step} say when checkpoints are taken: only a job can read such a source",
                    hint="write the stream to ps.collect(), and run the job",
                )
        state.ledger.looked_at(state.last_step)
        return StreamPath(
            schema=state.schema,
            ends=not self._unending(),
            make_plan=lambda sink, parallelism: state.ledger.plan_into(
                sink, state.input_of_changes(), state.schema, parallelism=parallelism
            ),
        )

    def _unending(self) -> list[str]:
        steps = self._state.ledger.path_to(self._state.last_step)
        return [str(step) for step in steps if isinstance(step.step, ReadStep) and step.step.source.is_unbounded]

    def _unlimited(self) -> list[str]:
        """The sources that never end, and that no limit ends either."""
        ledger, last = self._state.ledger, self._state.last_step
        steps = ledger.path_to(last)
        reached, wanted = dict[int, None](), [last]
        by_number = {step.number: step for step in steps}
        while wanted:
            step = by_number[wanted.pop()]
            is_limit = isinstance(step.step, ProcessStep) and isinstance(step.step.function, FirstRows)
            if step.number not in reached and not is_limit:
                reached[step.number] = None
                wanted += [source.node for source in step.inputs]
        found = (by_number[number] for number in sorted(reached))
        return [str(step) for step in found if isinstance(step.step, ReadStep) and step.step.source.is_unbounded]


def _as(shape: Shape, table: pa.Table, runner: Runner) -> Any:
    match shape:
        case "rows":
            return table_rows(table)
        case "arrow":
            return table
        case "polars":
            return pl.DataFrame(pl.from_arrow(table))
        case "pandas":
            return table.to_pandas()
        case "spark":
            return runner.as_spark(table)


def _check_count(given: int, argument: str) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(f"{argument} is {given!r}; give a whole number above 0")
