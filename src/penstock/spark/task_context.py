"""The answers of `TaskContext.get()` for code of a data source, which expects a Spark task of its own.

A slot is one Spark task as long as the slot lives. So Spark's own `TaskContext` would give the same numbers for every
partition that is read and every transaction that is written in the slot. Code that uses these numbers in the names of
files needs numbers that differ from call to call. Each call runs on a thread of its own, and this context answers by
thread.
"""

# Names are those of PySpark's class.
# ruff: noqa: N802

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext

_CALLS_PER_TASK = 1 << 32
"""More calls than one slot will ever make. Ids stay below 2^63 for two thousand million tasks of one Spark
application."""

_call = threading.local()
_numbers = itertools.count(1)


class _ByThread(TaskContext):
    """The context of the slot's own Spark task, but each call of a data source's code gets numbers of its own."""

    def partitionId(self) -> int:
        """The number of the partition that the call is for."""
        known: int | None = getattr(_call, "partition", None)
        return super().partitionId() if known is None else known

    def attemptNumber(self) -> int:
        """How many attempts of the job came before, if the call has this number; otherwise Spark's own number."""
        known: int | None = getattr(_call, "attempt", None)
        return super().attemptNumber() if known is None else known

    def taskAttemptId(self) -> int:
        """A number that no other call in this Spark application has."""
        known: int | None = getattr(_call, "number", None)
        own = super().taskAttemptId()
        return own if known is None else own * _CALLS_PER_TASK + known


@contextmanager
def as_own_task(*, partition: int, attempt: int | None = None) -> Iterator[None]:
    """Have `TaskContext.get()` answer on this thread as in a Spark task of its own, while the block runs. Outside of a
    Spark task, nothing happens."""
    slot = TaskContext.get()
    if slot is None:
        yield
        return
    if not isinstance(slot, _ByThread):
        context = object.__new__(_ByThread)
        context.__dict__.update(slot.__dict__)
        TaskContext._setTaskContext(context)  # noqa: SLF001  # there is no public way to set it
    _call.partition, _call.attempt, _call.number = partition, attempt, next(_numbers)
    try:
        yield
    finally:
        _call.partition = _call.attempt = _call.number = None
