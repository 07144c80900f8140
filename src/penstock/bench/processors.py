"""Processors as users write them, against PySpark's interface alone. The benchmarks run them by Spark and by
Penstock."""

# PySpark's class gives the names of methods and parameters.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

COUNTED = "k bigint, n bigint"
PASSED = "key bigint, created_us bigint"


class CountRowsOfKey(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._seen = handle.getValueState("seen", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Count."""
        found = self._seen.get()
        count = 0 if found is None else found[0]
        for _ in rows:
            count += 1
        self._seen.update((count,))
        yield Row(k=key[0], n=count)

    def close(self) -> None:
        """Nothing is left to do."""


class PassRows(StatefulProcessor):
    """Counts the rows of each key, and hands every row on."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._seen = handle.getValueState("seen", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Count and hand on."""
        found = self._seen.get()
        count = 0 if found is None else found[0]
        for row in rows:
            count += 1
            yield Row(key=row.key, created_us=row.created_us)
        self._seen.update((count,))

    def close(self) -> None:
        """Nothing is left to do."""
