"""The state of a running job: read from its newest completed checkpoint, which is kept until it has been read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.api.boundary import at_user_line
from penstock.core.errors import CorruptFile, StorageError, UsageError
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.lookup import value_of_key
from penstock.spark.savepoints import Savepoint

log = logging.getLogger(__name__)

FoundT = TypeVar("FoundT")

TRIES = 5
"""A checkpoint may be deleted while it is read, by another driver that has taken the job over, or because the job has
just ended: then the next newest checkpoint is read, up to so many times."""


class HeldCheckpoint:
    """A completed checkpoint that is not deleted at present."""

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number


Hold = Callable[[], AbstractContextManager[HeldCheckpoint]]
"""Keeps the newest completed checkpoint while a block runs. Raises `UsageError` if there is none."""


@at_user_line
class LiveState:
    """One state of a running job, as of the job's newest completed checkpoint. The job goes on meanwhile.

    `state.frame` is a DataFrame of the whole state, with the columns that `Savepoint.state` describes. All methods of
    the DataFrame may be called on the state itself: `state.where("value > 10").show()`. `state.get(key)` is the state
    of one key.
    """

    def __init__(self, spark: Any, hold: Hold, *, operator: str, name: str) -> None:
        self._spark = spark
        self._hold = hold
        self._operator = operator
        self._name = name
        self._frame: Any = None
        self.checkpoint: int | None = None
        """The number of the checkpoint that was read last. None before the first reading."""

    def __repr__(self) -> str:
        read = "" if self.checkpoint is None else f" as of checkpoint {self.checkpoint}"
        return f"<LiveState {self._name!r} of {self._operator!r}{read}>"

    @property
    def frame(self) -> Any:
        """The state as a DataFrame. Spark reads the state when this is first asked for, and keeps the rows: all uses of
        the DataFrame see the same checkpoint. Make another `LiveState` for a newer checkpoint.

        Raises:
            UsageError: the job has no completed checkpoint, or no such operator or state.

        """
        if self._frame is None:
            self._frame = self._read(self._kept_rows)
        return self._frame

    def get(self, key: Any, default: Any = None) -> Any:
        """The state of one key, as of the newest completed checkpoint at the time of the call; `default` if the key has
        no state. Only the files of the key's key group are read, in this process.

        The key is a value; or a tuple of values, or a dict, if there are several key columns. A list state gives a
        list, a map state a dict. Windows, joins and timers give a list of rows, each a dict.
        """
        return self._read(lambda held: value_of_key(SnapshotData(held.path), self._operator, self._name, key, default))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.frame, name)

    def _kept_rows(self, held: HeldCheckpoint) -> Any:
        read = Savepoint(self._spark, SnapshotData(held.path)).state(self._operator, self._name)
        # The rows are copied now: files of the checkpoint may be gone when somebody looks at the DataFrame.
        return read.localCheckpoint(eager=True)

    def _read(self, read: Callable[[HeldCheckpoint], FoundT]) -> FoundT:
        seen: int | None = None
        for left in reversed(range(TRIES)):
            with self._hold() as held:
                try:
                    found = read(held)
                except (StorageError, CorruptFile, PySparkException, Py4JError, UsageError) as error:
                    # An error that comes again with the same checkpoint has another cause than a deletion.
                    if left == 0 or held.number == seen or not _is_gone(held, error):
                        raise
                    log.info("checkpoint %d was deleted while it was read; reading the next one", held.number)
                    seen = held.number
                    continue
            self.checkpoint = held.number
            return found
        raise UsageError(f"the checkpoints of the job are deleted faster than state {self._name!r} can be read")


def _is_gone(held: HeldCheckpoint, error: Exception) -> bool:
    """Whether the checkpoint has been deleted."""
    try:
        SnapshotData(held.path)
    except (StorageError, CorruptFile, UsageError):
        return True
    return isinstance(error, StorageError)


@contextmanager
def held_while(path: str, number: int, let_go: Callable[[], None]) -> Iterator[HeldCheckpoint]:
    """Let go of a checkpoint when the block has ended."""
    try:
        yield HeldCheckpoint(path, number)
    finally:
        let_go()
