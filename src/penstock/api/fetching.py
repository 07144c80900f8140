"""Rows that come from code that may block: the code runs on a thread, and the loop takes the rows that have come.

The thread only adds rows, and the loop only takes rows. Each counts its own rows, so no lock is needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import xxhash

from penstock.sql.python_values import shown_rows

ROWS_AHEAD = 32_768
"""How many rows are fetched before they are taken, unless a source says otherwise. An Arrow batch may exceed it."""

WAIT_MS = 2
"""How long the loop waits when no rows have come."""


class Fetcher:
    """Runs `rows` on a thread. What `rows` returns is iterated on the same thread; its items are rows, or Arrow
    batches. When `ahead` rows have been fetched and not taken, no more are asked for."""

    def __init__(self, rows: Callable[[], Iterable[Any]], *, name: str, ahead: int = ROWS_AHEAD) -> None:
        self.has_ended = False
        """Whether no more rows will be added. Rows that were added may still be there to be taken."""
        self.error: BaseException | None = None
        """What `rows`, or the iteration, raised. Looked at when `has_ended`, and all rows have been taken."""
        self._rows = rows
        self._ahead = ahead
        self._is_closed = False
        self._items: deque[Any] = deque()
        self._added = 0
        self._taken = 0
        self._room = threading.Event()
        threading.Thread(target=self._run, name=f"penstock-read-{name}", daemon=True).start()

    def take(self, max_rows: int) -> list[Any] | pa.RecordBatch | None:
        """Rows, or a batch, that have come; None if there are none."""
        items = self._items
        if not items:
            return None
        if isinstance(items[0], pa.RecordBatch):
            batch: pa.RecordBatch = items.popleft()
            if batch.num_rows > max_rows:
                items.appendleft(batch.slice(max_rows))
                batch = batch.slice(0, max_rows)
            self._give_room(batch.num_rows)
            return batch
        rows: list[Any] = []
        while items and len(rows) < max_rows and not isinstance(items[0], pa.RecordBatch):
            rows.append(items.popleft())
        self._give_room(len(rows))
        return rows

    def close(self) -> None:
        """Have the thread end at the next row. A thread that is blocked inside code of the user's cannot be ended:
        Spark then does not use the process again."""
        self._is_closed = True
        self._room.set()

    def _give_room(self, rows: int) -> None:
        self._taken += rows
        if self._added - self._taken <= self._ahead // 2:
            self._room.set()

    def _run(self) -> None:
        try:
            for item in self._rows():
                self._items.append(item)
                self._added += item.num_rows if isinstance(item, pa.RecordBatch) else 1
                while self._added - self._taken >= self._ahead and not self._is_closed:
                    self._room.wait()
                    self._room.clear()
                if self._is_closed:
                    return
        except BaseException as error:  # noqa: BLE001  # the loop raises the error
            self.error = error
        finally:
            self.has_ended = True


def digest_of(row: pa.RecordBatch) -> int:
    """A number by which a row is recognized when it is read again."""
    return xxhash.xxh3_64_intdigest(repr(shown_rows(row)).encode())
