"""Nexmark's bids as a data source of Spark, so that a query of Spark and a job of Penstock can read the same stream."""

# Names and parameters are those of PySpark's classes.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.connectors.nexmark import BASE_TIME, BLOCK_ROWS, BidGenerator, bids
from penstock.core.errors import UsageError


class NexmarkBids(DataSource):
    """The bids of `ps.nexmark.bids`, for `spark.read` and `spark.readStream`.

    Register the class, `spark.dataSource.register(ps.NexmarkBids)`, and read `format("penstock-nexmark-bids")`. The
    options: `events`, how many bids there are; `seed`; `eventsPerSecond`, how many events share one second of event
    time; `numPartitions`, how many partitions a batch has; and `maxBidsPerTrigger`, how many bids a micro-batch has at
    most. The rows are those of `ps.nexmark.bids`.
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return "penstock-nexmark-bids"

    def schema(self) -> str:
        """The columns of a bid."""
        return "auction bigint, bidder bigint, price bigint, ts timestamp"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # there is only one schema
        """All bids, once."""
        return _Batch(_Stretch(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002  # there is only one schema
        """The bids, as many at a time as a micro-batch may have."""
        return _Stream(_Stretch(self.options))


class _Stretch:
    """The values of the options, and how a range of bids is made."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.events = _number(options, "events", None)
        self.seed = _number(options, "seed", 0)
        self.events_per_second = _number(options, "eventsPerSecond", 10_000)
        self.partitions = _number(options, "numPartitions", 8)
        self.at_once = _number(options, "maxBidsPerTrigger", 1_000_000)
        if self.at_once < 1:
            raise UsageError(f"option 'maxBidsPerTrigger' is {self.at_once}; it must be at least 1")
        # Raises `UsageError` for every value that the source `bids` refuses.
        bids(events=self.events, seed=self.seed, events_per_second=self.events_per_second, splits=self.partitions)

    def cut(self, first: int, stop: int) -> list[InputPartition]:
        """The bids from `first` up to, not including, `stop`, in equal parts."""
        step = max(1, -(-(stop - first) // self.partitions))
        return [InputPartition((at, min(at + step, stop))) for at in range(first, stop, step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The bids of a partition."""
        generator = BidGenerator(seed=self.seed, events_per_second=self.events_per_second, base_time=BASE_TIME)
        first, stop = partition.value
        for at in range(first, stop, BLOCK_ROWS):
            yield generator.batch(at, min(at + BLOCK_ROWS, stop))


class _Batch(DataSourceReader):
    def __init__(self, stretch: _Stretch) -> None:
        self._stretch = stretch

    def partitions(self) -> list[InputPartition]:
        return self._stretch.cut(0, self._stretch.events) or [InputPartition((0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._stretch.read(partition)


class _Stream(DataSourceStreamReader):
    """An offset is the number of the next bid."""

    def __init__(self, stretch: _Stretch) -> None:
        self._stretch = stretch

    def initialOffset(self) -> dict[str, int]:
        return {"bid": 0}

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._stretch.at_once)

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        most = getattr(limit, "max_rows", None)
        if start is None or most is None:
            return {"bid": self._stretch.events}
        return {"bid": min(self._stretch.events, start["bid"] + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._stretch.cut(start["bid"], end["bid"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._stretch.read(partition)


def _number(options: Mapping[str, str], name: str, default: int | None) -> int:
    given = options.get(name)
    if given is None and default is None:
        raise UsageError(f"option {name!r} is missing", hint=f'.option("{name}", 1_000_000)')
    try:
        return int(default if given is None else given)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(f"option {name!r} is {given!r}, which is no whole number") from None
