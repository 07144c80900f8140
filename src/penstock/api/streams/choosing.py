"""Which records of a stream go on: chosen by a function, by a hash, or by the records that came before.

Conditions over columns are in `Stream.where`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable
from penstock.api.first_rows import FirstOfKey, FirstOfSubtask, FirstPrinted, FirstRows
from penstock.api.state import Ttl
from penstock.api.state import ttl as time_to_live
from penstock.api.steps import FilterStep, ProcessStep, SampleStep, Step
from penstock.api.streams.ranking import last_of_keys, within_time
from penstock.api.streams.stream_state import Row, StreamState, keyed_step
from penstock.api.window_schema import check_key_types
from penstock.core.durations import Duration
from penstock.core.errors import UsageError
from penstock.sql.schemas import can_be_key


def first_of_all(state: StreamState, first: FirstRows, *, kind: str, name: str | None) -> StreamState:
    """The stream of the first records, or of the first changes of a changelog, of all subtasks together."""
    ledger = state.ledger
    # Each subtask hands on so many records at most, so that not all records of a stream travel to a single subtask.
    each = ProcessStep(function=FirstOfSubtask(first.most), schema=state.schema)
    before = state.behind(ledger.add(each, kind=f"{kind}-each", inputs=state.input_of_changes()), state.schema).to_one()
    number = ledger.add(ProcessStep(function=first, schema=state.schema), kind=kind, name=name, inputs=before.input())
    return before.behind(number, state.schema)


@at_user_line
class ChoosesRows:
    """The methods of a stream after which there are fewer records with the same columns."""

    _state: StreamState

    def _then(
        self, step: Step, schema: pa.Schema, *, kind: str, name: str | None = None, time_column: str | None
    ) -> Self:
        raise NotImplementedError

    def _with_state(self, state: StreamState) -> Self:
        raise NotImplementedError

    def _check_columns(self, columns: Iterable[str], argument: str) -> None:
        raise NotImplementedError

    def filter(self, function: Callable[[Row], Any], *, name: str | None = None) -> Self:
        """Only the records for which `function` returns a true value. The function is called with each record as a
        dict. Row by row is slow: prefer a condition, `where("price > 100")`, if the condition can be written as one.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     lines = env.from_iterable(["to be", "# or not"], schema="line string")
        ...     lines.filter(lambda row: not row["line"].startswith("#")).write(collect())
        >>> run(program)
        [{'line': 'to be'}]
        """
        check_callable(function, "filter")
        state = self._state
        step = FilterStep(function=function, schema=state.schema)
        return self._then(step, state.schema, kind="filter", name=name, time_column=state.time_column)

    def sample(
        self, fraction: float, *, by: Sequence[str] | str | None = None, seed: int = 0, name: str | None = None
    ) -> Self:
        """About `fraction` of the records, such as 0.1 for a tenth.

        The values of a record, together with `seed`, decide whether the record goes on: by a hash of all columns that
        can be keys, or of the columns that `by` names. So a record that is read again after a failure is decided in the
        same way, whichever subtask reads it, and so is a second run of the program. Equal records go on together, or
        not at all. With `by="user"` all records of about a tenth of the users go on.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     env.from_iterable(range(10_000), schema="n bigint").sample(0.1, seed=7).write(collect())
        >>> 900 < len(run(program)) < 1_100
        True
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise UsageError(f"sample: fraction is {fraction!r}; give a number from 0 to 1")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"sample: seed is {seed!r}; give a whole number")
        state = self._state
        columns = self._sampled_by(by)
        step = SampleStep(columns=columns, fraction=float(fraction), seed=seed, schema=state.schema)
        return self._then(step, state.schema, kind="sample", name=name, time_column=state.time_column)

    def _sampled_by(self, by: Sequence[str] | str | None) -> tuple[str, ...]:
        schema = self._state.schema
        if by is not None:
            columns = (by,) if isinstance(by, str) else tuple(by)
            self._check_columns(columns, "sample")
            check_key_types(schema, columns)
            return columns
        found = tuple(field.name for field in schema if can_be_key(field.type))
        if not found:
            raise UsageError(
                "sample decides by the values of a record, and no column is of a type that can be hashed",
                hint="add a column first, such as .with_columns(id=...), and give by='id'",
            )
        return found

    def limit(self, n: int, *, name: str | None = None) -> Self:
        """The first `n` records that come, and no other record, whatever fails and however often the job is rescaled.

        A single subtask counts the records, and its count is part of every checkpoint. Which records come first may
        differ from run to run. The count is kept under `name`.

        With the last of the records the sources end whose records nothing else needs, as if they had no more data: so
        a job ends whose sources all lead to full limits, whether their data has an end or not. A source that another
        branch of the program reads goes on for that branch. To look at a few records, use `take`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     env.from_iterable(range(100), schema="n bigint").limit(3).write(collect())
        >>> len(run(program))
        3
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"limit is {n!r}; give a whole number above 0")
        self._state.refuse_changelog("limit")
        return self._with_state(first_of_all(self._state, FirstRows(n), kind="limit", name=name))

    def _first_printed(self, n: int) -> Self:
        """The first `n` records, or changes of a changelog, that `print` prints."""
        state = first_of_all(self._state, FirstPrinted(n), kind="print-first", name=None)
        return self._with_state(replace(state, changelog=self._state.changelog))

    def deduplicate(
        self,
        by: Sequence[str] | str,
        *,
        within: Duration | None = None,
        keep: Literal["first", "last"] = "first",
        ttl: Ttl | Duration | None = None,
        name: str | None = None,
    ) -> Self:
        """One record of all records that are equal in the columns in `by`.

        With `keep="first"` the record that comes first goes on, at once. With `keep="last"` the result is a
        **changelog**: the row of a key is the record that is last in event time, or without event time the record that
        came last. Of two records with the same time that record counts whose other columns are smaller, the first
        column first. Nulls are equal to each other, as in Spark.

        With `within="1 h"`, which needs a watermark before, records are equal only if they are less than an hour apart
        in event time, counted from the record of the key that came first. A record that comes later than that begins
        anew. State is forgotten when the watermark has passed. Late records are dropped and counted, or are in the
        stream `late()` of the result. Records without a time are dropped and counted.

        Without `within` the state of a key is kept for ever, or with `ttl="1h"` for an hour after its record went on
        (`keep="first"`), or after its last record (`keep="last"`). State is kept under `name`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     rows = [{"id": 1, "ms": 1_000}, {"id": 1, "ms": 2_000}, {"id": 1, "ms": 9_000}]
        ...     events = env.from_iterable(rows).with_columns(ts="timestamp_millis(ms)").watermark("ts")
        ...     events.deduplicate("id", within="5s").select("id", "ms").write(collect())
        >>> run(program, parallelism=1)
        [{'id': 1, 'ms': 1000}, {'id': 1, 'ms': 9000}]
        """
        state, keys = self._state, (by,) if isinstance(by, str) else tuple(by)
        self._check_columns(keys, "deduplicate")
        check_key_types(state.schema, keys)
        state.refuse_changelog("deduplicate")
        if keep not in ("first", "last"):
            raise UsageError(f"deduplicate: keep is {keep!r}; choose 'first' or 'last'")
        if within is None:
            if keep == "last":
                return self._with_state(last_of_keys(state, keys, ttl=ttl, name=name))
            return self._first_of_keys(keys, ttl, kind="deduplicate", label=keys, name=name)
        if ttl is not None:
            raise UsageError(
                "deduplicate: within and ttl were both given, and each says when the state of a key is forgotten",
                hint="give within to count in event time, or ttl to count by the clock",
            )
        return self._with_state(within_time(state, keys, within, keeps_last=keep == "last", name=name))

    def distinct(self, *columns: str, ttl: Ttl | Duration | None = None, name: str | None = None) -> Self:
        """The first record that comes with each value of `columns`; without columns, with each value of all columns.
        Nulls are equal to each other, as in Spark.

        Every value that has come is state, on the back end that the environment has. With `ttl="1h"` a value is
        forgotten an hour after its record went on, and the next record with that value goes on again. State is kept
        under `name`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     rows = [{"user": "ann", "n": 1}, {"user": "bob", "n": 2}, {"user": "ann", "n": 3}]
        ...     env.from_iterable(rows).distinct("user").write(collect())
        >>> sorted(row["user"] for row in run(program))
        ['ann', 'bob']
        """
        state = self._state
        keys = columns or tuple(state.schema.names)
        self._check_columns(keys, "distinct")
        check_key_types(state.schema, keys)
        return self._first_of_keys(keys, ttl, kind="distinct", label=columns, name=name)

    def _first_of_keys(
        self, keys: tuple[str, ...], ttl: Ttl | Duration | None, *, kind: str, label: Sequence[str], name: str | None
    ) -> Self:
        state = self._state
        lives = ttl if ttl is None or isinstance(ttl, Ttl) else time_to_live(ttl)
        step = keyed_step(FirstOfKey(lives), state, keys, state.schema)
        number = state.ledger.add(
            step, kind=kind, label="-".join((kind, *label)), inputs=(state.input_by_key(keys),), name=name
        )
        return self._with_state(state.behind(number, step.schema))
