"""A sink that hands every checkpoint's records to a function on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable
from penstock.api.changelog import Changelog
from penstock.api.connector import Footprint, Sink, Site, UnpreparedSink
from penstock.api.printing import MOST_COUNTED, PrintSink
from penstock.core.errors import UsageError


@dataclass(frozen=True)
class ForEachCheckpoint(UnpreparedSink):
    """A function of the user, before the job starts. On Spark `prepared` makes a sink that lands files for the
    function."""

    function: Callable[[Any, int], Any]

    def __post_init__(self) -> None:
        check_callable(self.function, "for_each_checkpoint")

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "for-each-checkpoint"

    @property
    def described(self) -> str:
        """What error texts call the sink: the method that the user called."""
        return "for_each_checkpoint"

    @property
    def footprint(self) -> Footprint:
        """Files with the records of a checkpoint, until the function has returned."""
        return Footprint(in_landing=True, shares_landing=True)

    def for_changes(self, changelog: Changelog) -> Sink:  # noqa: ARG002
        """The same sink: the function gets the changes."""
        return self

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002
        """A sink that lands files for the function."""
        return site.handing_over(self.function)


@at_user_line
class HandsOver:
    """The methods of a stream that hand results to the driver."""

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """End the stream in a sink."""
        raise NotImplementedError

    def _first_printed(self, n: int) -> HandsOver:
        """The first `n` records of all subtasks together."""
        raise NotImplementedError

    def print(self, n: int | None = None, *, prefix: str | None = None, name: str | None = None) -> None:
        """End the stream on the standard output of this process, one line a record: for a first look at a job.

        Lines come while the job runs, and do not wait for checkpoints. So records that are processed again after a
        failure are **printed again**: this is no sink to rely on. A slot hands on at most 200 lines with each of its
        heartbeats, two a second, and 100 of a batch; how many more there were is told. The job never waits for it.

        With `n`, which is at most 10,000, each of the first `n` records is printed, and no other record: a single
        subtask counts for all, and its count is in every checkpoint. The job goes on when all of them are printed.

        >>> from penstock.testing import run, scripted
        >>> words = scripted([{"word": "to", "n": 1}], schema="word string, n bigint")
        >>> _ = run(lambda env: env.read(words).print(prefix="words"))
        words> {word: to, n: 1}

        Args:
            n: only the first `n` records are printed.
            prefix: a text before each line, to tell several streams apart.
            name: the name of the step.

        """
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_COUNTED):
            raise UsageError(
                f"n is {n!r}; give the number of records to print, at most {MOST_COUNTED:,}, or nothing for all records"
            )
        if prefix is not None and (not isinstance(prefix, str) or not prefix.isprintable()):
            raise UsageError(f"prefix is {prefix!r}; give a text of one line")
        stream = self if n is None else self._first_printed(n)
        stream.write(PrintSink(counted=n is not None, prefix=prefix), name=name)

    def for_each_checkpoint(self, function: Callable[[Any, int], Any], *, name: str | None = None) -> None:
        """End the stream in `function`, which is called on the driver with a Spark DataFrame and an id.

        One call has the records between the barriers of two checkpoints, and comes when a checkpoint that contains
        these records is complete. Ids ascend. There is no call for an id without records. After a failure the same
        call, with the same id and the same records, may come again until the call has returned once: make the function
        idempotent by the id, and use the DataFrame before the function returns. An error in the function fails the
        attempt. With `job.stop` and a start from the savepoint ids go on; a job that starts from an older snapshot
        counts from that snapshot again.

        >>> from penstock.testing import run
        >>> def store(frame, checkpoint_id):
        ...     frame.write.mode("overwrite").parquet(f"out/id={checkpoint_id}")
        >>> def program(env):
        ...     env.from_iterable([{"n": 1}]).for_each_checkpoint(store)
        >>> run(program)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        penstock.core.errors.UsageError: for_each_checkpoint needs Spark...
        """
        self.write(ForEachCheckpoint(function), name=name)
