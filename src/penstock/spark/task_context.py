"""What `TaskContext.get()` says to code that was written for a Spark task of its own.

A slot is one Spark task for as long as it lives, so Spark's own answers would be the same for every partition that is
read and every transaction that is written in it. Code that names files by them must get answers that tell its calls
apart: each call runs on a thread of its own, and this context answers by thread.
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
"""More than one slot will ever make; ids stay below 2^63 for two thousand million tasks of one Spark application."""

_call = threading.local()
_numbers = itertools.count(1)


class _ByThread(TaskContext):
    """The context of the slot's own task, except for what a call is told about itself."""

    def partitionId(self) -> int:
        """Which partition the call is for."""
        known: int | None = getattr(_call, "partition", None)
        return super().partitionId() if known is None else known

    def attemptNumber(self) -> int:
        """How often the job has been started before, if the call knows."""
        known: int | None = getattr(_call, "attempt", None)
        return super().attemptNumber() if known is None else known

    def taskAttemptId(self) -> int:
        """Unique to the call, in this Spark application."""
        known: int | None = getattr(_call, "number", None)
        own = super().taskAttemptId()
        return own if known is None else own * _CALLS_PER_TASK + known


@contextmanager
def as_own_task(*, partition: int, attempt: int | None = None) -> Iterator[None]:
    """Have this thread look like a Spark task of its own. Where there is no Spark task at all, nothing happens."""
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
